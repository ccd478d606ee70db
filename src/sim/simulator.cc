#include "sim/simulator.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "engine/prefill_turns.h"
#include "sim/chance.h"

namespace kvcake {

struct Simulator::Running {
  const SimRequest* request;
  size_t index;
  std::shared_ptr<Restoration> restoration;
};

Simulator::Simulator(SimOptions options) : options_(std::move(options)), rng_(options_.seed) {
  // As small as a page can be: its contents are its key.
  const KvLayout layout{
      .layers = 1, .kv_heads = 1, .head_dim = 1, .chunk_tokens = options_.chunk_tokens};
  pool_ = std::move(PagePool::Create(layout, options_.pages * layout.page_bytes()).value());
  std::vector<Tier*> tiers;
  for (const SimTierOptions& tier : options_.tiers) {
    tiers_.push_back(std::make_unique<SimTier>(tier, clock_, rng_()));
    tiers.push_back(tiers_.back().get());
  }
  restorer_ = NewRestorer(*pool_, std::move(tiers), cost_, clock_, options_.restorer);
}

Simulator::~Simulator() = default;

std::vector<ChunkKey> Simulator::Keys(int document, int chunks) const {
  std::vector<int32_t> tokens(chunks, document);
  return ChunkKeys(ChunkKey{}, tokens, 1);
}

RestoreRequest Simulator::Request(int document, int chunks, Policy policy) const {
  RestoreRequest request;
  request.keys = Keys(document, chunks);
  request.chunk_tokens = options_.chunk_tokens;
  request.prompt_tokens = chunks * options_.chunk_tokens + 1;
  request.policy = policy;
  request.slice_chunks_max = std::max(1, options_.slice_tokens / options_.chunk_tokens);
  return request;
}

void Simulator::Train() {
  for (int prefix : {0, 0, 1024, 4096, 512, 2048, 16384}) {
    for (int chunks = 1; chunks <= 4; ++chunks) {
      const int tokens = chunks * options_.chunk_tokens;
      cost_.Add(prefix, tokens, Seconds(options_.compute.SecondsFor(prefix, tokens)));
    }
  }
  constexpr int kChunks = 100;
  for (size_t t = 0; t < tiers_.size(); ++t) {
    const int document = -1 - static_cast<int>(t);
    for (const ChunkKey& key : Keys(document, kChunks)) tiers_[t]->Hold(key);
    // Once for the gaps, then a few times for the start of a busy link.
    for (int chunks : {kChunks, 1, 1, 1}) {
      Run({{.restore = Request(document, chunks, Policy::kLoad), .at_s = 0, .cancel_s = {}}});
    }
  }
}

void Simulator::Check() const {
  if (options_.check) options_.check(*restorer_);
}

void Simulator::AdvanceTo(TimePoint t) {
  for (TimePoint next = NextTierEvent(); next <= t; next = NextTierEvent()) {
    clock_.AdvanceTo(next);
    for (auto& tier : tiers_) tier->Advance();
    Check();
  }
  clock_.AdvanceTo(t);
}

TimePoint Simulator::NextTierEvent() const {
  TimePoint next = kNever;
  for (const auto& tier : tiers_) next = std::min(next, tier->NextEvent());
  return next;
}

// Time passes while so many tokens are computed.
Seconds Simulator::Step(double prefix, double tokens) {
  const double work_s = (options_.slice_s ? options_.slice_s(prefix, tokens)
                                          : options_.compute.SecondsFor(prefix, tokens)) *
                        Vary(rng_, options_.compute_jitter);
  const TimePoint began = clock_.Now();
  AdvanceTo(begin_ + Seconds(options_.compute_speed.EndOf((began - begin_).count(), work_s)));
  return clock_.Now() - began;
}

void Simulator::Compute(Running& running, const Claim& claim) {
  const auto& keys = running.request->restore.keys;
  const auto pages = running.restoration->PageIds(claim.end());
  const auto holds = [&](int i) {
    return std::memcmp(pool_->Data(pages[i]), &keys[i], sizeof(ChunkKey)) == 0;
  };
  for (int i = 0; i < claim.first; ++i) CHECK(holds(i));
  for (int i = claim.first; i < claim.end(); ++i) {
    std::memset(pool_->Data(pages[i]), 0, sizeof(ChunkKey));
  }
  // Others fill a step that is shared.
  const double began_s = (clock_.Now() - begin_).count();
  const int prefix = claim.first * options_.chunk_tokens;
  const int tokens = share_ ? options_.slice_tokens : claim.count * options_.chunk_tokens;
  const Seconds took = Step(prefix, tokens);
  if (share_) share_->Step(began_s, claim.count);
  for (int i = claim.first; i < claim.end(); ++i) {
    CHECK(pages[i] == running.restoration->PageIds(claim.end())[i]);
    std::memcpy(pool_->Data(pages[i]), &keys[i], sizeof(ChunkKey));
  }
  cost_.Add(prefix, tokens, took);
  running.restoration->Computed(claim);
  Check();
}

// A step of others alone.
void Simulator::Starve(int chunk) {
  const double began_s = (clock_.Now() - begin_).count();
  const int prefix = chunk * options_.chunk_tokens;
  cost_.Add(prefix, options_.slice_tokens, Step(prefix, options_.slice_tokens));
  share_->Step(began_s, 0);
}

void Simulator::Finish(Running& running, SimOutcome& outcome) {
  outcome.done = true;
  outcome.seconds = (clock_.Now() - begin_).count() - running.request->at_s;
  const auto& keys = running.request->restore.keys;
  outcome.report = running.restoration->Report(Seconds(0));
  const PageTable pages = running.restoration->TakePages();
  CHECK(pages.size() == keys.size());
  for (size_t i = 0; i < keys.size(); ++i) {
    CHECK(std::memcmp(pool_->Data(pages[i].id()), &keys[i], sizeof(ChunkKey)) == 0);
  }
}

void Simulator::PublishBehind(const std::vector<SimRequest>& requests) {
  const auto& keys = requests[rng_() % requests.size()].restore.keys;
  if (keys.empty()) return;
  const ChunkKey& key = keys[rng_() % keys.size()];
  auto page = pool_->Draw();
  if (!page) return;
  std::memcpy(pool_->Data(page->id()), &key, sizeof(ChunkKey));
  pool_->Publish(std::move(*page), key, NumericPath::kUnknown);
}

void Simulator::EraseEnded(std::vector<Running>& running, std::vector<SimOutcome>& outcomes) {
  std::erase_if(running, [&](Running& r) {
    if (r.request->cancel_s && begin_ + Seconds(*r.request->cancel_s) <= clock_.Now()) {
      r.restoration->Abandon();
    } else if (r.restoration->done()) {
      Finish(r, outcomes[r.index]);
    } else {
      return false;
    }
    Check();
    return true;
  });
}

// A step is one slice of one prompt.
class Simulator::Taker : public PrefillTaker {
 public:
  Taker(Simulator& simulator, std::vector<Running>& running)
      : simulator_(simulator), running_(running) {}

  int Prefill(int, int) override {
    CHECK(!"every prompt is a restoration");
    return 0;
  }
  ComputeTurn Ask(int index, const ComputeBudget& budget) override {
    ++simulator_.turns_;
    const ComputeTurn turn = running_[index].restoration->NextTurn(budget);
    simulator_.Check();
    return turn;
  }
  int Restore(int index, const Claim& claim, int) override {
    CHECK(!slice_);
    slice_ = {.whose = index, .claim = claim};
    return simulator_.options_.slice_tokens;  // nobody else gets a slice of this step
  }

  const std::optional<StepSlice>& slice() const { return slice_; }

 private:
  Simulator& simulator_;
  std::vector<Running>& running_;
  std::optional<StepSlice> slice_;
};

Simulator::Turns Simulator::TakeTurns(std::vector<Running>& running) {
  if (running.empty()) return {};
  const TimePoint now = clock_.Now();
  const double now_s = (now - begin_).count();
  std::vector<PrefillNeed> needs;
  TimePoint cancelled = kNever;
  for (const Running& r : running) {
    needs.push_back(RestorationNeed(r.restoration->Need(), now_s - r.request->at_s));
    if (!r.request->cancel_s) continue;
    cancelled = std::min(cancelled, begin_ + Seconds(*r.request->cancel_s));
  }
  PrefillBudget budget{.tokens = options_.slice_tokens,
                       .room_tokens = options_.slice_tokens,
                       .chunk_tokens = options_.chunk_tokens,
                       .schedule = options_.schedule};
  if (share_) {
    const int chunks = share_->Budget(now_s);
    budget.restorations = {.chunks = chunks, .share = share_->typical()};
  }
  Taker taker(*this, running);
  const PrefillTurns turns = TakePrefillTurns(budget, needs, now, taker);
  return {.slice = taker.slice(),
          .wanted_chunk = turns.wanted_chunk,
          .wake = std::min(turns.wake_at, cancelled)};
}

void Simulator::Begin() {
  begin_ = clock_.Now();
  for (auto& tier : tiers_) tier->StartTrace();
  share_.reset();
  if (options_.compute_share) {
    share_.emplace(*options_.compute_share, options_.slice_tokens, options_.chunk_tokens);
  }
}

// Reads that nobody waits for come back in their own time; nothing is left behind.
void Simulator::End() {
  const auto release = [&] {
    for (auto& tier : tiers_) tier->ReleaseHung();
    return NextTierEvent() != kNever;
  };
  while (release()) AdvanceTo(NextTierEvent());
  CHECK(restorer_->Stats().reads_in_flight == 0);
  for (const auto& tier : tiers_) CHECK(tier->pinned() == 0);
  CHECK(pool_->Stats().referenced == 0);
  pool_->DropCached();
}

std::vector<SimOutcome> Simulator::Run(const std::vector<SimRequest>& requests) {
  std::vector<SimOutcome> outcomes(requests.size());
  Begin();
  std::vector<size_t> waiting(requests.size());
  for (size_t i = 0; i < waiting.size(); ++i) waiting[i] = i;
  std::stable_sort(waiting.begin(), waiting.end(),
                   [&](size_t a, size_t b) { return requests[a].at_s > requests[b].at_s; });
  const auto arrival = [&] { return begin_ + Seconds(requests[waiting.back()].at_s); };
  std::vector<Running> running;
  while (!waiting.empty() || !running.empty()) {
    while (!waiting.empty() && arrival() <= clock_.Now()) {
      const size_t i = waiting.back();
      waiting.pop_back();
      running.push_back({&requests[i], i, restorer_->Open(requests[i].restore)});
      Check();
    }
    if (Happens(rng_, options_.publish_share)) PublishBehind(requests);
    EraseEnded(running, outcomes);
    const Turns turns = TakeTurns(running);
    if (turns.slice) {
      Compute(running[turns.slice->whose], turns.slice->claim);
    } else if (turns.wanted_chunk) {
      Starve(*turns.wanted_chunk);
    } else if (!waiting.empty() || !running.empty()) {
      const TimePoint wake = waiting.empty() ? turns.wake : std::min(turns.wake, arrival());
      AdvanceTo(std::max(clock_.Now(), std::min(wake, NextTierEvent())));
    }
  }
  End();
  return outcomes;
}

}  // namespace kvcake
