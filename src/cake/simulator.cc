#include "cake/simulator.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string_view>

#include "base/check.h"

namespace kvcake {
namespace {

constexpr TimePoint kNever = TimePoint::max();
constexpr int kGarbage = 0xdb;

double Vary(std::mt19937_64& rng, double share) {
  return share > 0 ? 1 + std::uniform_real_distribution<double>(-share, share)(rng) : 1;
}

bool Happens(std::mt19937_64& rng, double share) {
  return share > 0 && std::uniform_real_distribution<double>(0, 1)(rng) < share;
}

}  // namespace

SimTier::SimTier(SimTierOptions options, FakeClock& clock, uint64_t seed)
    : options_(std::move(options)), clock_(clock), rng_(seed) {}

TimePoint SimTier::NextEvent() const {
  if (!ended_.empty()) return clock_.Now();
  return std::min(head_done_.value_or(kNever), looks_.empty() ? kNever : looks_.front().due);
}

void SimTier::Advance() {
  while (!looks_.empty() && looks_.front().due <= clock_.Now()) {
    AskedFor look = std::move(looks_.front());
    looks_.pop_front();
    Answer(std::move(look));
  }
  while (!ended_.empty() || (head_done_ && *head_done_ <= clock_.Now())) {
    auto& from = ended_.empty() ? queue_ : ended_;
    Read read = std::move(from.front());
    from.pop_front();
    if (&from == &queue_) {
      link_free_ = *head_done_;
      head_done_.reset();
      StartHead();
    }
    Deliver(std::move(read));
  }
}

void SimTier::Deliver(Read read) {
  ReadResult result{.status = read.status};
  const auto landing = read.request.landing;
  if (read.status) {
    std::memcpy(landing.data(), &read.request.key, sizeof(ChunkKey));
    result.bytes = landing.size();
    ++stats_.reads;
    stats_.read_bytes += result.bytes;
  } else {
    std::memset(landing.data(), kGarbage, sizeof(ChunkKey));
    ++stats_.reads_failed;
  }
  read.request.done(std::move(result));
}

void SimTier::Answer(AskedFor look) {
  const auto& keys = look.request.keys;
  const size_t end = look.answered == 0 ? (keys.size() + 1) / 2 : keys.size();
  std::vector<bool> held;
  for (size_t i = look.answered; i < end; ++i) held.push_back(held_.contains(keys[i]));
  if (!look.request.found(look.answered, held) || end == keys.size()) return;
  look.answered = end;
  look.due += Seconds(std::isfinite(options_.look_s) ? options_.look_s / 2 : 0);
  const auto later = [&](const AskedFor& other) { return other.due > look.due; };
  looks_.insert(std::find_if(looks_.begin(), looks_.end(), later), std::move(look));
}

void SimTier::StartHead() {
  while (!head_done_ && !queue_.empty() && queue_.front().hung) {
    hung_.push_back(std::move(queue_.front()));
    queue_.pop_front();
  }
  if (head_done_ || queue_.empty() || queue_.front().stalled) return;
  const Read& head = queue_.front();
  const TimePoint ready = head.issued + Seconds(options_.latency_s);
  const double start_s = (std::max(ready, link_free_) - trace_start_).count();
  head_done_ = trace_start_ + Seconds(options_.speed.EndOf(start_s, head.seconds));
}

void SimTier::ReleaseHung() {
  for (Read& read : hung_) {
    if (Happens(rng_, 0.5)) read.status = Fail(ErrorCode::kIo, "simulated end of a hung read");
    ended_.push_back(std::move(read));
  }
  hung_.clear();
  for (AskedFor& look : looks_) look.due = std::min(look.due, clock_.Now());
}

std::vector<bool> SimTier::Residency(std::span<const ChunkKey> keys) {
  std::vector<bool> held;
  for (const ChunkKey& key : keys) held.push_back(options_.look_s == 0 && held_.contains(key));
  return held;
}

bool SimTier::Look(LookRequest request) {
  if (options_.look_s == 0) return false;
  const bool ends = std::isfinite(options_.look_s);
  const TimePoint due = ends ? clock_.Now() + Seconds(options_.look_s / 2) : kNever;
  const auto later = [&](const AskedFor& other) { return other.due > due; };
  looks_.insert(std::find_if(looks_.begin(), looks_.end(), later), {due, std::move(request), 0});
  return true;
}

ReadId SimTier::Get(ReadRequest request) {
  std::memset(request.landing.data(), 0, sizeof(ChunkKey));  // whatever lay there is no chunk
  Read read{.id = next_id_++,
            .request = std::move(request),
            .issued = clock_.Now(),
            .seconds = options_.chunk_s * Vary(rng_, options_.jitter),
            .status = {},
            .stalled = Happens(rng_, options_.stall_share),
            .hung = Happens(rng_, options_.hang_share)};
  ++gets_;
  if (Happens(rng_, options_.fail_share)) {
    read.status = Fail(ErrorCode::kCorrupt, "simulated corruption");
  } else if (Happens(rng_, options_.missing_share)) {
    read.status = Fail(ErrorCode::kNotFound, "simulated miss");
    read.seconds = 0;
  }
  link_free_ = queue_.empty() ? std::max(link_free_, clock_.Now()) : link_free_;
  queue_.push_back(std::move(read));
  StartHead();
  return next_id_ - 1;
}

void SimTier::Cancel(ReadId id) {
  const auto it =
      std::find_if(queue_.begin(), queue_.end(), [&](const Read& read) { return read.id == id; });
  if (it == queue_.end() || it->hung) return;
  if (!it->stalled && Happens(rng_, options_.cancel_ignored_share)) return;
  it->status = Fail(ErrorCode::kCancelled, "cancelled");
  if (!it->stalled && Happens(rng_, options_.cancel_slow_share)) return;
  const bool head = it == queue_.begin();
  ended_.push_back(std::move(*it));
  queue_.erase(it);
  if (head) {
    link_free_ = clock_.Now();
    head_done_.reset();
    StartHead();
  }
}

Status SimTier::Put(const ChunkWrite& chunk) {
  Hold(chunk.key);
  return {};
}

Status SimTier::Evict(const ChunkKey& key) {
  held_.erase(key);
  return {};
}

TierStats SimTier::Stats() const {
  TierStats stats = stats_;
  stats.chunks = held_.size();
  return stats;
}

struct Simulator::Running {
  const SimRequest* request;
  size_t index;
  TimePoint opened;
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
  restorer_ =
      std::make_unique<Restorer>(*pool_, std::move(tiers), cost_, clock_, options_.restorer);
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

void Simulator::CheckInvariants() const {
  if (options_.check_invariants) restorer_->CheckInvariants();
}

void Simulator::AdvanceTo(TimePoint t) {
  for (TimePoint next = NextTierEvent(); next <= t; next = NextTierEvent()) {
    clock_.AdvanceTo(next);
    for (auto& tier : tiers_) tier->Advance();
    CheckInvariants();
  }
  clock_.AdvanceTo(t);
}

TimePoint Simulator::NextTierEvent() const {
  TimePoint next = kNever;
  for (const auto& tier : tiers_) next = std::min(next, tier->NextEvent());
  return next;
}

// chunks: what is left of the step.
ComputeTurn Simulator::NextTurn(Running& running, int chunks) {
  ComputeBudget budget{.chunks = chunks, .share = chunks > 0 ? 1.0 : 0.0};
  if (share_) {
    budget.chunks = std::min(budget.chunks, share_->Budget((clock_.Now() - begin_).count()));
    budget.share = share_->typical();
  }
  ++turns_;
  const ComputeTurn turn = running.restoration->NextTurn(budget);
  CheckInvariants();
  return turn;
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
  running.restoration->Computed(claim, Seconds(0));
  CheckInvariants();
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
  outcome.seconds = (clock_.Now() - running.opened).count();
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
    CheckInvariants();
    return true;
  });
}

Simulator::Turns Simulator::TakeTurns(std::vector<Running>& running) {
  Turns turns;
  std::vector<PrefillNeed> needs;
  for (const Running& r : running) {
    const ComputeNeed need = r.restoration->Need();
    needs.push_back({.fresh_chunks = need.fresh_chunks,
                     .restoring = true,
                     .fresh_s = need.fresh_s,
                     .age_s = (clock_.Now() - begin_).count() - r.request->at_s,
                     .idle = need.idle,
                     .rank = need.rank});
    if (r.request->cancel_s) {
      turns.wake = std::min(turns.wake, begin_ + Seconds(*r.request->cancel_s));
    }
  }
  for (const PrefillTurn& next : OrderPrefills(options_.schedule, needs, Seconds(1))) {
    Running& r = running[next.index];
    const int most = r.request->restore.slice_chunks_max;
    const ComputeTurn turn =
        NextTurn(r, turns.slice ? 0 : std::min(most, next.chunks_max.value_or(most)));
    switch (turn.kind) {
      case ComputeTurn::Kind::kSlice:
        turns.slice = turn;
        turns.whose = next.index;
        break;
      case ComputeTurn::Kind::kStarved:
        if (!turns.slice) turns.starved_at = turn.claim.first;
        break;
      case ComputeTurn::Kind::kWait:
        turns.wake = std::min(turns.wake, turn.wait_until);
        break;
      case ComputeTurn::Kind::kDone:
        turns.wake = clock_.Now();
        break;
    }
  }
  return turns;
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
  CHECK(restorer_->ReadsInFlight() == 0);
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
      const TimePoint now = clock_.Now();
      running.push_back({&requests[i], i, now, restorer_->Open(requests[i].restore)});
      CheckInvariants();
    }
    if (Happens(rng_, options_.publish_share)) PublishBehind(requests);
    EraseEnded(running, outcomes);
    const Turns turns = TakeTurns(running);
    if (turns.slice) {
      Compute(running[turns.whose], turns.slice->claim);
    } else if (turns.starved_at) {
      Starve(*turns.starved_at);
    } else if (!waiting.empty() || !running.empty()) {
      const TimePoint wake = waiting.empty() ? turns.wake : std::min(turns.wake, arrival());
      AdvanceTo(std::max(clock_.Now(), std::min(wake, NextTierEvent())));
    }
  }
  End();
  return outcomes;
}

}  // namespace kvcake
