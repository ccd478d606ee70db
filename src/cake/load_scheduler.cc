#include "cake/load_scheduler.h"

#include <algorithm>

#include "base/check.h"

namespace kvcake {

void LoadScheduler::Pump() {
  lacks_pages_ = false;
  const auto& lanes = parts_.lanes;
  if (std::none_of(lanes.begin(), lanes.end(), [](const auto& lane) { return lane.HasRoom(); })) {
    return;
  }
  parts_.planner.UpdateRanks();
  for (size_t t = 0; t < parts_.lanes.size(); ++t) {
    while (PumpOne(static_cast<int>(t))) {
    }
  }
}

// One read for the next prompt that wants one.
bool LoadScheduler::PumpOne(int tier) {
  if (!parts_.lanes[tier].HasRoom()) return false;
  for (Board* board : parts_.table.ranked()) {
    if (board->claims().AbsentIn(1u << tier) == 0 || !board->MayLoad() || !board->Trusts(tier)) {
      continue;
    }
    const auto chunk = NextChunk(*board, tier);
    if (!chunk) continue;
    const bool started = StartRead(*board, tier, *chunk);
    if (parts_.table.boards().size() > 1) parts_.planner.UpdateRank(*board);
    return started;
  }
  return TakeFromSlower(tier);
}

std::optional<int> LoadScheduler::NextChunk(Board& board, int tier) {
  if (!parts_.planner.Holds(board)) {
    parts_.planner.MakePlanFor(board, board.request().slice_chunks_max);
  }
  if (const auto chunk = board.NextLoad(tier)) return chunk;
  return Probe(board, tier);
}

// A link that was slow once may be fast now: one read will tell. It is of the chunk that the other
// tiers would load last, so that nobody misses it; compute or they can overtake it.
std::optional<int> LoadScheduler::Probe(const Board& board, int tier) const {
  if (!parts_.lanes[tier].WantsProbe()) return std::nullopt;
  const Claims& claims = board.claims();
  const Plan& plan = board.plan()->plan;
  for (int i = 0; i < claims.size(); ++i) {
    if (plan.sides[i] == Side::kLoad && claims.Wants(i, tier)) return i;
  }
  if (board.FixedSplit()) return std::nullopt;
  std::optional<int> last;  // before the first hole behind one
  for (int i = claims.first_missing(); i < claims.size(); ++i) {
    if (claims.IsHole(i) && last) break;
    if (claims.Wants(i, tier)) last = i;
  }
  return last;
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
  // The other is not asked for it again, or two would take it from each other for ever. It has not
  // failed: what it alone holds is still its to deliver.
  owner.claims().Fail(old, from);
  parts_.table.Disown(owner, old);
  Cancel(from, number);
  return StartRead(owner, tier, old.first);
}

bool LoadScheduler::StartRead(Board& board, int tier, int chunk) {
  auto page = context_.pool.Draw();
  if (!page) {  // every page is in use; the next event or turn tries again
    lacks_pages_ = true;
    return false;
  }
  const Claim claim = board.claims().ClaimLoad(chunk);
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
  NoteFailure(owner, tier);
  owner.CountFailedLoad();
  owner.AddReason(fmt::format("load of chunk {} from {} failed: {}", read.claim.first,
                              parts_.lanes[tier].name(), why));
  read.owner = nullptr;
}

void LoadScheduler::NoteFailure(Board& board, int tier) {
  board.NoteFailure(tier);
  failing_ |= 1u << tier;
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
  LaneRead read = lane.End(number, result);
  if (ok && (failing_ >> tier & 1) != 0) {
    for (Board* board : parts_.table.boards()) board->ForgetFailures(tier);
    failing_ &= ~(1u << tier);
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

void LoadScheduler::Yield(Board& board, int chunk) {
  for (size_t t = 0; t < parts_.lanes.size(); ++t) {
    for (auto& [number, read] : parts_.lanes[t].reads()) {
      if (read.owner != &board || read.claim.first != chunk) continue;
      board.AddReason(fmt::format("load of chunk {} given up: compute got there first", chunk));
      board.NoteRead(chunk, parts_.lanes[t].name(), read.start, Outcome::kLate);
      if (const auto heir = parts_.table.Inherit(chunk, read.key)) {
        read.owner = heir->board;
        read.claim = heir->claim;
        return;
      }
      parts_.table.Disown(board, read.claim);
      return Cancel(static_cast<int>(t), number);
    }
  }
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

}  // namespace kvcake
