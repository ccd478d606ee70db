#include "cake/restorer_impl.h"

#include <new>
#include <nlohmann/json.hpp>

#include "base/change.h"
#include "base/check.h"

namespace kvcake {

std::unique_ptr<Restorer> NewRestorer(PagePool& pool, std::vector<Tier*> tiers, ComputeCost& cost,
                                      const Clock& clock, const Restorer::Options& options) {
  return std::make_unique<RestorerImpl>(pool, std::move(tiers), cost, clock, options);
}

RestorerImpl::RestorerImpl(PagePool& pool, std::vector<Tier*> tiers, ComputeCost& cost,
                           const Clock& clock, const Options& options)
    : context_{pool, cost, clock, options},
      tiers_(std::move(tiers)),
      planner_(context_, lanes_, table_),
      loads_(context_, {lanes_, table_, planner_, calls_}),
      peers_(context_, {lanes_, table_, planner_, calls_}),
      compute_(context_, {lanes_, table_, planner_, calls_}, loads_, peers_) {
  CHECK(tiers_.size() <= Claims::kTiersMax);
  CHECK(options.claims.tier < static_cast<int>(tiers_.size()));
  for (Tier* tier : tiers_) lanes_.emplace_back(context_, *tier);
}

RestorerImpl::~RestorerImpl() {
  MutexLock lock(mutex_);
  CHECK(table_.boards().empty());  // so all reads have been cancelled
  while (!Idle()) idle_.Wait(mutex_);
}

std::shared_ptr<Restoration> RestorerImpl::Open(RestoreRequest request) {
  CHECK(request.chunk_tokens > 0 && request.slice_chunks_max > 0);
  const int n = static_cast<int>(request.keys.size());
  std::vector<std::vector<bool>> residency;
  std::vector<std::vector<ChunkKey>> pinned(tiers_.size());
  if (request.policy != Policy::kCompute && n > 0) {
    for (size_t t = 0; t < tiers_.size(); ++t) {
      residency.push_back(tiers_[t]->Residency(request.keys));
      for (int i = 0; i < n; ++i) {
        if (residency[t][i]) pinned[t].push_back(request.keys[i]);
      }
      tiers_[t]->Pin(pinned[t]);
    }
  }
  std::shared_ptr<Restoration> opened;
  TierCalls calls;
  {
    TimedMutexLock lock(mutex_, times_);
    const Change change(broken_);
    auto made =
        std::make_unique<Board>(context_, std::move(request), next_serial_++, tiers_.size());
    Board& board = *made;
    for (size_t t = 0; t < residency.size(); ++t) {
      board.AddPins(static_cast<int>(t), std::move(pinned[t]));
      board.SetLoadable(static_cast<int>(t), residency[t]);
    }
    opened = std::make_shared<RestorationImpl>(*this, std::move(made));
    table_.FindMade(board, 0, n, context_.pool);
    table_.Add(board);
    planner_.UpdateRank(board);
    if (!residency.empty()) LookFor(board);
    loads_.Pump();
    calls = TakeCalls();
  }
  Make(std::move(calls));
  return opened;
}

std::vector<bool> RestorerImpl::Known(std::span<const ChunkKey> keys, bool stored) const {
  std::vector<bool> known(keys.size(), false);
  for (Tier* tier : tiers_) {
    if (!stored) break;
    const std::vector<bool> held = tier->Residency(keys);
    for (size_t i = 0; i < known.size(); ++i) known[i] = known[i] || held[i];
  }
  for (size_t i = 0; i < known.size(); ++i) known[i] = known[i] || context_.pool.Contains(keys[i]);
  return known;
}

StoreLook RestorerImpl::Look(std::span<const ChunkKey> keys, Seconds patience) const {
  return LookInStores(tiers_, keys, Known(keys, /*stored=*/false), patience);
}

uint64_t RestorerImpl::EventsAfter(uint64_t seen, TimePoint deadline) {
  // The deadline is the Restorer's clock's, which a test may have stopped.
  const TimePoint until = Clock::Real().Now() + (deadline - context_.clock.Now());
  TimedMutexLock lock(mutex_, times_.waited);
  while (events_ == seen && event_.WaitUntil(mutex_, until)) {
  }
  return events_;
}

void RestorerImpl::Wake() {
  TimedMutexLock lock(mutex_, times_.waited);
  Event();
}

RestorerStats RestorerImpl::Stats() const {
  TimedMutexLock lock(mutex_, times_.waited);
  RestorerStats stats{.planning = times_.held, .mutex_wait = times_.waited};
  for (const LoadLane& lane : lanes_) {
    stats.reads_in_flight += static_cast<int>(lane.reads().size());
    for (const auto& [number, read] : lane.reads()) stats.late_reads += read.owner == nullptr;
  }
  return stats;
}

nlohmann::json RestorerImpl::TierCostToJson(int tier) const {
  MutexLock lock(mutex_);
  return lanes_.at(tier).cost().ToJson();
}

Status RestorerImpl::TierCostFromJson(int tier, const nlohmann::json& json) {
  MutexLock lock(mutex_);
  return lanes_.at(tier).cost().FromJson(json);
}

void RestorerImpl::Event() {
  ++events_;
  event_.NotifyAll();
}

bool RestorerImpl::IsBroken() const {
  TimedMutexLock lock(mutex_, times_.waited);
  return broken_;
}

void RestorerImpl::Keep(std::unique_ptr<Board> board) {
  TimedMutexLock lock(mutex_, times_.waited);
  board->set_next_kept(std::move(kept_));
  kept_ = std::move(board);
}

void RestorerImpl::Close(Board& board) {
  if (board.closed()) return;
  table_.Remove(board);
  if (board.slice()) {
    const Claim dropped = board.DropSlice();
    if (!board.request().private_slices) table_.Disown(board, dropped);
  }
  loads_.GiveAway(board);
  peers_.Ended(board);
  auto pinned = board.TakePins();
  for (size_t t = 0; t < pinned.size(); ++t) {
    if (pinned[t].empty()) continue;
    calls_.unpins.push_back({static_cast<int>(t), std::move(pinned[t])});
  }
  board.Close();
  Event();
  loads_.Pump();
}

TierCalls RestorerImpl::TakeCalls() {
  if (!calls_.empty()) ++calling_;
  claiming_ += static_cast<int>(calls_.claims.size());
  return std::exchange(calls_, {});
}

bool RestorerImpl::Idle() const {
  const bool reading = std::any_of(lanes_.begin(), lanes_.end(),
                                   [](const LoadLane& lane) { return !lane.reads().empty(); });
  return !reading && looks_ == 0 && claiming_ == 0 && calling_ == 0;
}

void RestorerImpl::NoteIdle() {
  if (Idle()) idle_.NotifyAll();
}

void RestorerImpl::Make(TierCalls calls) {
  if (calls.empty()) return;
  for (const TierCalls::Get& get : calls.gets) {
    const ReadId id = tiers_[get.tier]->Get(
        {.key = get.key,
         .parent = get.parent,
         .landing = get.landing,
         .done = [this, tier = get.tier, number = get.number](ReadResult result) {
           OnRead(tier, number, std::move(result));
         }});
    TimedMutexLock lock(mutex_, times_.waited);
    if (lanes_[get.tier].Issued(get.number, id)) calls.cancels.push_back({get.tier, id});
  }
  for (const auto& [tier, id] : calls.cancels) tiers_[tier]->Cancel(id);
  for (const auto& [tier, keys] : calls.unpins) tiers_[tier]->Unpin(keys);
  for (LookCall& look : calls.looks) StartLook(std::move(look));
  if (!calls.disclaims.empty()) tiers_[context_.options.claims.tier]->Disclaim(calls.disclaims);
  for (ClaimCall& claim : calls.claims) StartClaim(std::move(claim));
  TimedMutexLock lock(mutex_, times_.waited);
  --calling_;
  NoteIdle();
}

// Asks each tier for what it is not known to hold and memory does not have.
void RestorerImpl::LookFor(Board& board) {
  const Claims& claims = board.claims();
  for (size_t t = 0; t < lanes_.size(); ++t) {
    if (lanes_[t].stalled()) continue;
    LookCall look{.serial = board.serial(), .tier = static_cast<int>(t)};
    for (int i = 0; i < claims.size(); ++i) {
      const bool known = (claims.tiers(i) >> t & 1) != 0;
      if (known || claims.state(i) == ChunkState::kResident) continue;
      look.chunks.push_back(i);
      look.keys.push_back(board.key(i));
    }
    if (look.chunks.empty()) continue;
    board.BeginLook(look.tier);
    lanes_[t].BeginLook();
    ++looks_;
    calls_.looks.push_back(std::move(look));
  }
  board.AwaitLooksFor(planner_.LookWait(board));
}

void RestorerImpl::StartLook(LookCall look) {
  LookRequest request{.keys = std::move(look.keys), .found = {}};
  const uint64_t serial = look.serial;
  const int tier = look.tier;
  request.found = [this, look = std::move(look)](size_t first, const std::vector<bool>& held) {
    return OnFound(look, first, held);
  };
  if (tiers_[tier]->Look(std::move(request))) return;
  TimedMutexLock lock(mutex_, times_.waited);
  EndLook(serial, tier);
}

void RestorerImpl::EndLook(uint64_t serial, int tier) {
  --looks_;
  lanes_[tier].EndLook();
  if (Board* board = table_.Find(serial)) board->EndLook(tier);
  Event();
}

bool RestorerImpl::OnFound(const LookCall& look, size_t first, const std::vector<bool>& held) {
  std::vector<ChunkKey> keys;
  {
    TimedMutexLock lock(mutex_, times_.waited);
    if (broken_) return false;
    lanes_[look.tier].NoteAnswer();
    if (const Board* board = table_.Find(look.serial)) {
      for (size_t i = 0; i < held.size(); ++i) {
        if (held[i]) keys.push_back(board->key(look.chunks[first + i]));
      }
    }
  }
  // Without the mutex the prompt may end between here and there: then nobody else unpins these.
  tiers_[look.tier]->Pin(keys);
  bool goes_on = false;
  TierCalls calls;
  {
    TimedMutexLock lock(mutex_, times_);
    if (broken_) return false;
    Board* board = table_.Find(look.serial);
    if (board != nullptr) {
      for (size_t i = 0; i < held.size(); ++i) {
        if (held[i]) board->AddLoadable(look.chunks[first + i], look.tier);
      }
      board->AddPins(look.tier, std::move(keys));
    } else if (!keys.empty()) {
      calls_.unpins.push_back({look.tier, std::move(keys)});
    }
    goes_on = board != nullptr && first + held.size() < look.chunks.size();
    if (!goes_on) EndLook(look.serial, look.tier);
    Event();
    loads_.Pump();
    calls = TakeCalls();
    NoteIdle();
  }
  if (!calls.empty()) Make(std::move(calls));  // else the Restorer may have gone
  return goes_on;
}

void RestorerImpl::StartClaim(ClaimCall call) {
  Tier& tier = *tiers_[context_.options.claims.tier];
  const auto asked = std::make_shared<const ClaimCall>(std::move(call));
  if (tier.Claim({.keys = asked->keys,
                  .lasts = asked->lasts,
                  .done = [this, asked](const auto& states) { OnClaimed(*asked, states); }})) {
    return;
  }
  TimedMutexLock lock(mutex_, times_.waited);
  EndClaim(*asked, {});
}

void RestorerImpl::OnClaimed(const ClaimCall& call, const std::vector<ClaimState>& states) {
  const int tier = context_.options.claims.tier;
  std::vector<ChunkKey> stored;
  for (size_t i = 0; i < states.size(); ++i) {
    if (states[i] == ClaimState::kStored) stored.push_back(call.keys[i]);
  }
  // Without the mutex the prompt may end between here and there: then nobody else unpins these.
  tiers_[tier]->Pin(stored);
  TierCalls calls;
  {
    TimedMutexLock lock(mutex_, times_);
    if (broken_) {
      --claiming_;
      return NoteIdle();
    }
    if (Board* board = table_.Find(call.serial)) {
      for (size_t i = 0; i < states.size(); ++i) {
        if (states[i] == ClaimState::kStored) board->AddLoadable(call.chunks[i], tier);
      }
      board->AddPins(tier, std::move(stored));
    } else if (!stored.empty()) {
      calls_.unpins.push_back({tier, std::move(stored)});
    }
    EndClaim(call, states);
    loads_.Pump();
    calls = TakeCalls();
    NoteIdle();
  }
  if (!calls.empty()) Make(std::move(calls));  // else the Restorer may have gone
}

// Nothing was claimed where `states` is empty.
void RestorerImpl::EndClaim(const ClaimCall& call, const std::vector<ClaimState>& states) {
  --claiming_;
  if (Board* board = table_.Find(call.serial)) {
    peers_.Answered(*board, call, states);
  } else {
    peers_.EndedBefore(call, states);
  }
  Event();
}

void RestorerImpl::OnRead(int tier, uint64_t number, ReadResult result) {
  TierCalls calls;
  {
    TimedMutexLock lock(mutex_, times_);
    if (broken_) {  // whose it is cannot be said
      (void)lanes_[tier].End(number, result);
      return;
    }
    loads_.EndRead(tier, number, std::move(result));
    Event();
    loads_.Pump();
    calls = TakeCalls();
    NoteIdle();
  }
  if (!calls.empty()) Make(std::move(calls));  // else the Restorer may have gone
}

RestorationImpl::~RestorationImpl() {
  try {
    if (!restorer_.IsBroken()) Abandon();
  } catch (const std::bad_alloc&) {  // it is now
  }
  if (restorer_.IsBroken()) restorer_.Keep(std::move(board_));
}

ComputeTurn RestorationImpl::NextTurn(const ComputeBudget& budget) {
  const TimePoint began = Clock::Real().Now();
  ComputeTurn turn{.kind = ComputeTurn::Kind::kDone};
  TierCalls calls;
  {
    TimedMutexLock lock(restorer_.mutex(), restorer_.times());
    const Change change(restorer_.broken());
    CHECK(!board_->closed() && budget.chunks >= 0 && budget.share >= 0);
    board_->CountTurn();
    if (!board_->claims().done()) {
      if (restorer_.loads().CheckStalls()) restorer_.Event();
      turn = restorer_.compute().NextTurn(*board_, budget);
    }
    calls = restorer_.TakeCalls();
  }
  MakeAndCount(std::move(calls), began);
  return turn;
}

ComputeTurn RestorationImpl::ClaimFront(int chunks) {
  const TimePoint began = Clock::Real().Now();
  ComputeTurn turn{.kind = ComputeTurn::Kind::kDone};
  TierCalls calls;
  {
    TimedMutexLock lock(restorer_.mutex(), restorer_.times());
    const Change change(restorer_.broken());
    CHECK(!board_->closed() && board_->request().private_slices && chunks > 0);
    board_->CountTurn();
    if (!board_->claims().done()) turn = restorer_.compute().ClaimFront(*board_, chunks);
    calls = restorer_.TakeCalls();
  }
  MakeAndCount(std::move(calls), began);
  return turn;
}

std::vector<PageId> RestorationImpl::PageIds(int chunks) const {
  TimedMutexLock lock(restorer_.mutex(), restorer_.times().waited);
  return board_->PageIds(chunks);
}

ComputeNeed RestorationImpl::Need() const {
  TimedMutexLock lock(restorer_.mutex(), restorer_.times());
  CHECK(!board_->closed());
  return restorer_.planner().Need(*board_);
}

void RestorationImpl::Computed(const Claim& claim) {
  const TimePoint began = Clock::Real().Now();
  TierCalls calls;
  {
    TimedMutexLock lock(restorer_.mutex(), restorer_.times());
    const Change change(restorer_.broken());
    CHECK(!board_->closed() && board_->slice() &&
          board_->slice()->claim.generation == claim.generation);
    restorer_.compute().Computed(*board_, claim.count);
    restorer_.Event();
    restorer_.loads().Pump();
    calls = restorer_.TakeCalls();
  }
  MakeAndCount(std::move(calls), began);
}

bool RestorationImpl::IsClaimed(int chunk) const {
  TimedMutexLock lock(restorer_.mutex(), restorer_.times().waited);
  return board_->peers().state(chunk) == PeerState::kMine;
}

PageHandle RestorationImpl::PageOf(int chunk) const {
  TimedMutexLock lock(restorer_.mutex(), restorer_.times().waited);
  return board_->PageOf(chunk);
}

void RestorationImpl::MakeAndCount(TierCalls calls, TimePoint began) {
  restorer_.Make(std::move(calls));
  TimedMutexLock lock(restorer_.mutex(), restorer_.times().waited);
  board_->AddPlanning(Clock::Real().Now() - began);
}

void RestorationImpl::Abandon() {
  TierCalls calls;
  {
    TimedMutexLock lock(restorer_.mutex(), restorer_.times());
    const Change change(restorer_.broken());
    restorer_.Close(*board_);
    calls = restorer_.TakeCalls();
  }
  restorer_.Make(std::move(calls));
}

RestoreProgress RestorationImpl::Progress() const {
  TimedMutexLock lock(restorer_.mutex(), restorer_.times().waited);
  return board_->Progress();
}

bool RestorationImpl::done() const {
  TimedMutexLock lock(restorer_.mutex(), restorer_.times().waited);
  return board_->claims().done();
}

PageTable RestorationImpl::TakePages() {
  PageTable pages;
  TierCalls calls;
  {
    TimedMutexLock lock(restorer_.mutex(), restorer_.times());
    const Change change(restorer_.broken());
    restorer_.compute().Restored(*board_);
    pages = board_->TakePages();
    restorer_.Close(*board_);
    calls = restorer_.TakeCalls();
  }
  restorer_.Make(std::move(calls));
  return pages;
}

RestoreReport RestorationImpl::Report(std::optional<Seconds> tail) const {
  TimedMutexLock lock(restorer_.mutex(), restorer_.times().waited);
  RestoreReport report = board_->Report();
  report.lossy = restorer_.options().lossy;
  report.bound_s = restorer_.planner().Bound(*board_, tail);
  return report;
}

}  // namespace kvcake
