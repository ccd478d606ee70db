#include "cake/load_scheduler.h"

#include <algorithm>

#include "base/check.h"

namespace kvcake {

void LoadScheduler::Pump() {
  lacks_pages_ = false;
  parts_.planner.UpdateRanks();
  for (size_t t = 0; t < parts_.lanes.size(); ++t) {
    while (PumpOne(static_cast<int>(t))) {
    }
  }
}

// One read for the next prompt that wants one.
bool LoadScheduler::PumpOne(int tier) {
  if (!parts_.lanes[tier].HasRoom()) return false;
  ranked_.clear();
  for (Board* board : parts_.table.boards()) {
    if (board->MayLoad()) ranked_.push_back(board);
  }
  std::stable_sort(ranked_.begin(), ranked_.end(),
                   [](const auto* a, const auto* b) { return a->rank() < b->rank(); });
  for (Board* board : ranked_) {
    const auto claim = ClaimLoad(*board, tier);
    if (!claim) continue;
    const bool started = StartRead(*board, tier, *claim);
    if (ranked_.size() > 1) parts_.planner.UpdateRank(*board);
    return started;
  }
  return TakeFromSlower(tier);
}

std::optional<Claim> LoadScheduler::ClaimLoad(Board& board, int tier) {
  if (!board.Trusts(tier)) return std::nullopt;
  Claims& claims = board.claims();
  const auto may_load = [&](int i) {
    return claims.state(i) == ChunkState::kAbsent && (claims.tiers(i) >> tier & 1) != 0;
  };
  bool any = false;
  for (int i = claims.first_missing(); i < claims.size() && !any; ++i) any = may_load(i);
  if (!any) return std::nullopt;
  const Plan plan = parts_.planner.MakePlanFor(board, board.request().slice_chunks_max);
  std::vector<uint8_t> allowed(claims.size());
  bool found = false;
  for (int i = claims.first_missing(); i < claims.size(); ++i) {
    if (claims.state(i) != ChunkState::kAbsent) continue;
    // There compute will wait for all before it: that is read first.
    if (plan.sides[i] == Side::kCompute && found) break;
    allowed[i] = plan.sides[i] != Side::kCompute && (plan.tiers[i] < 0 || plan.tiers[i] == tier);
    found = found || (allowed[i] && may_load(i));
  }
  if (auto claim = claims.ClaimBack(tier, allowed)) return claim;
  return ClaimProbe(board, tier, plan);
}

// A link that was slow once may be fast now: one read will tell. It is of the chunk that the other
// tiers would load last, so that nobody misses it; compute or they can overtake it.
std::optional<Claim> LoadScheduler::ClaimProbe(Board& board, int tier, const Plan& plan) {
  if (!parts_.lanes[tier].WantsProbe()) return std::nullopt;
  Claims& claims = board.claims();
  std::vector<uint8_t> allowed(claims.size());
  for (int i = 0; i < claims.size(); ++i) {
    allowed[i] = plan.sides[i] == Side::kLoad && (claims.tiers(i) >> tier & 1) != 0 &&
                 claims.state(i) == ChunkState::kAbsent;
    if (allowed[i]) return claims.ClaimBack(tier, allowed);
  }
  if (board.FixedSplit()) return std::nullopt;
  return claims.ClaimBack(tier);
}

// Has this tier read what another is expected to deliver later than it would: rates change, and a
// chunk may have been given to a tier before anything was known of it.
bool LoadScheduler::TakeFromSlower(int tier) {
  constexpr double kGainMin = 1.25;
  const LoadLane& lane = parts_.lanes[tier];
  if (parts_.lanes.size() < 2 || !lane.estimate().known) return false;
  for (LoadLane& other : parts_.lanes) other.UpdateEtas();
  double latest = kGainMin * (lane.View().drain_s + lane.interval_s());
  const LaneRead* slowest = nullptr;
  int from = 0;
  uint64_t number = 0;
  for (size_t t = 0; t < parts_.lanes.size(); ++t) {
    if (static_cast<int>(t) == tier) continue;
    for (const auto& [n, read] : parts_.lanes[t].reads()) {
      if (read.owner == nullptr || read.eta_s <= latest) continue;
      const Board& owner = *read.owner;
      if ((owner.claims().tiers(read.claim.first) >> tier & 1) == 0 || !owner.Trusts(tier)) {
        continue;
      }
      latest = read.eta_s;
      from = static_cast<int>(t);
      number = n;
      slowest = &read;
    }
  }
  if (slowest == nullptr) return false;
  if (!context_.pool.Draw()) {  // and given back at once, for StartRead
    lacks_pages_ = true;
    return false;
  }
  Board& owner = *slowest->owner;
  const Claim old = slowest->claim;
  owner.AddReason(fmt::format("chunk {} is read from {} instead of {}: it will be sooner",
                              old.first, lane.name(), parts_.lanes[from].name()));
  // The other is not asked for it again, or two would take it from each other for ever; and one
  // that lets this happen time after time is not asked for anything.
  owner.claims().Fail(old, from);
  owner.NoteFailure(from);
  parts_.table.Disown(owner, old);
  Cancel(from, number);
  std::vector<uint8_t> allowed(owner.claims().size());
  allowed[old.first] = 1;
  const auto claim = owner.claims().ClaimBack(tier, allowed);
  CHECK(claim.has_value());
  return StartRead(owner, tier, *claim);
}

bool LoadScheduler::StartRead(Board& board, int tier, const Claim& claim) {
  auto page = context_.pool.Draw();
  if (!page) {  // every page is in use; the next event or turn tries again
    board.claims().Release(claim);
    lacks_pages_ = true;
    return false;
  }
  const int chunk = claim.first;
  const uint64_t number = next_read_++;
  parts_.calls.gets.push_back({.tier = tier,
                               .number = number,
                               .key = board.key(chunk),
                               .parent = chunk == 0 ? board.request().root : board.key(chunk - 1),
                               .landing = context_.pool.LandingFor(page->id(), Codec::kRaw)});
  board.BeginRead(tier, number);
  parts_.lanes[tier].Start(number, {.owner = &board,
                                    .claim = claim,
                                    .key = board.key(chunk),
                                    .page = std::move(*page),
                                    .start = context_.clock.Now(),
                                    .id = {}});
  parts_.table.Claimed(board, claim);
  return true;
}

void LoadScheduler::Cancel(int tier, uint64_t number) {
  if (const auto id = parts_.lanes[tier].Cancel(number)) {
    parts_.calls.cancels.push_back({tier, *id});
  }
}

void LoadScheduler::Fail(int tier, LaneRead& read, std::string_view why) {
  Board& owner = *read.owner;
  parts_.table.FailLoad(owner, read.claim, tier);
  owner.NoteFailure(tier);
  owner.CountFailedLoad();
  owner.AddReason(fmt::format("load of chunk {} from {} failed: {}", read.claim.first,
                              parts_.lanes[tier].name(), why));
  read.owner = nullptr;
}

bool LoadScheduler::CheckStalls() {
  bool any = false;
  for (size_t t = 0; t < parts_.lanes.size(); ++t) {
    const int tier = static_cast<int>(t);
    LoadLane& lane = parts_.lanes[t];
    if (!lane.CheckStall()) continue;
    any = true;
    for (auto& [number, read] : lane.reads()) {
      if (read.owner != nullptr) Fail(tier, read, "nothing has come for too long");
      Cancel(tier, number);
    }
  }
  return any;
}

void LoadScheduler::EndRead(int tier, uint64_t number, ReadResult result) {
  LoadLane& lane = parts_.lanes[tier];
  const bool ok = result.status.has_value();
  LaneRead read = lane.End(number, result.bytes, ok);
  if (ok) {
    for (Board* board : parts_.table.boards()) board->ForgetFailures(tier);
  }
  const int chunk = read.claim.first;
  if (read.owner == nullptr) {
    // Its prompt has ended, but the chunk is here and verified: whoever wants it may have it.
    if (ok && parts_.table.OwnerOf(read.key) == nullptr) {
      parts_.table.Publish(
          chunk, read.key,
          context_.pool.Publish(std::move(read.page), read.key, result.numeric_path), nullptr);
    }
    return;
  }
  Board& owner = *read.owner;
  CHECK(owner.claims().Valid(read.claim));
  owner.NoteRead(chunk, lane.name(), read.start, ok ? Outcome::kPublished : Outcome::kFailed);
  if (!ok) return Fail(tier, read, result.status.error().message);
  PageHandle page = context_.pool.Publish(std::move(read.page), read.key, result.numeric_path);
  owner.claims().Publish(read.claim);
  parts_.table.Publish(chunk, read.key, page, &owner);
  owner.Loaded(chunk, lane.name(), std::move(page));
}

void LoadScheduler::TakeOver(Board& taker, int chunk) {
  const ChunkKey& key = taker.key(chunk);
  for (size_t t = 0; t < parts_.lanes.size(); ++t) {
    for (const auto& [number, read] : parts_.lanes[t].reads()) {
      if (read.owner == nullptr || read.key != key) continue;
      Board& owner = *read.owner;
      if (&owner != &taker) owner.claims().LoseLoad(chunk);
      owner.AddReason(fmt::format("load of chunk {} cancelled: compute got there first", chunk));
      owner.NoteRead(chunk, parts_.lanes[t].name(), read.start, Outcome::kLate);
      return Cancel(static_cast<int>(t), number);
    }
  }
  CHECK(!"a chunk that is loading has its read in a lane");
}

void LoadScheduler::GiveAway(Board& board) {
  for (size_t t = 0; t < parts_.lanes.size(); ++t) {
    LoadLane& lane = parts_.lanes[t];
    for (auto& [number, read] : lane.reads()) {
      if (read.owner != &board) continue;
      board.claims().Release(read.claim);
      if (const auto heir = parts_.table.Inherit(read.claim.first, read.key)) {
        read.owner = heir->board;
        read.claim = heir->claim;
      } else {
        parts_.table.Disown(board, read.claim);
        Cancel(static_cast<int>(t), number);
      }
    }
  }
}

void LoadScheduler::CancelAll() {
  for (size_t t = 0; t < parts_.lanes.size(); ++t) {
    for (const auto& [number, read] : parts_.lanes[t].reads()) Cancel(static_cast<int>(t), number);
  }
}

}  // namespace kvcake
