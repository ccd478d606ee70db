#include "cake/peer_lane.h"

#include <algorithm>

namespace kvcake {
namespace {

constexpr Seconds kPollMin{1e-3}, kPollMax{50e-3};
constexpr int kPollsPerSlice = 32;
constexpr double kLastsPerSlice = 4;

}  // namespace

PeerTurn PeerLane::NextTurn(Board& board) {
  const Plan& plan = board.plan()->plan;
  if (!TakesPart(board)) return {.chunks = plan.slice_chunks};
  PeerClaims& peers = board.peers();
  if (board.mixes_paths()) GiveBackMine(board);
  const int first = board.claims().first_missing();
  const TimePoint now = context_.clock.Now();
  const double slice_s = SliceSeconds(board);
  const double chunk_s = slice_s / board.request().slice_chunks_max;
  peers.ReachedFront(first, chunk_s);
  if (const int chunks = ChunksToCompute(board); chunks > 0) return {.chunks = chunks};
  if (peers.state(first) == PeerState::kTheirs) {
    if (!IsWorthWaiting(board) || !peers.MayWait(options_, now, slice_s, TurnSeconds(slice_s))) {
      return {.chunks = plan.slice_chunks};
    }
    const Seconds poll = std::clamp(Seconds(slice_s / kPollsPerSlice), kPollMin, kPollMax);
    if (!peers.asking() && now >= peers.asked() + poll) {
      Ask(board, first, first + board.request().slice_chunks_max);
    }
    return {.wait_until = std::max(now, peers.asked()) + poll,
            .reason = "waiting for a slice of another process"};
  }
  const double share = context_.options.planner.blind_wait_chunks;
  const Seconds patience = std::min(options_.answer_max, Seconds(share * chunk_s));
  if (!peers.asking()) Ask(board, first, first + board.request().slice_chunks_max);
  if (now >= peers.asked() + patience) return {.chunks = plan.slice_chunks};
  return {.wait_until = peers.asked() + patience, .reason = "claiming a slice"};
}

bool PeerLane::TakesPart(Board& board) {
  const RestoreRequest& request = board.request();
  PeerClaims& peers = board.peers();
  if (!peers.decided()) {
    const bool may = options_.tier >= 0 && request.keeps_chunks && !request.private_slices &&
                     request.policy == Policy::kCake && !request.forced_split;
    const double finish_s = board.plan()->plan.finish_s;
    if (may && finish_s == 0) return false;  // not known yet
    peers.Decide(may && finish_s >= options_.prompt_min.count());
  }
  return peers.active();
}

bool PeerLane::IsWorthWaiting(const Board& board) const {
  const LoadLane& lane = parts_.lanes[options_.tier];
  if (!lane.Usable() || !board.Trusts(options_.tier)) return false;
  const double chunk_s = SliceSeconds(board) / board.request().slice_chunks_max;
  return lane.interval_s() < chunk_s;  // 0 where it is unknown
}

// From the first missing chunk on: what is claimed, or need not be.
int PeerLane::ChunksToCompute(const Board& board) const {
  const Claims& claims = board.claims();
  const int first = claims.first_missing(), wanted = board.plan()->plan.slice_chunks;
  int chunks = 0;
  for (int i = first; i < claims.size() && chunks < wanted; ++i, ++chunks) {
    const PeerState state = board.peers().state(i);
    const bool waits = state == PeerState::kUnasked || state == PeerState::kTheirs;
    if (claims.tiers(i) == 0 && waits) break;
  }
  return chunks;
}

void PeerLane::Began(Board& board, const Claim& slice) {
  PeerClaims& peers = board.peers();
  if (!peers.active()) return;
  const int chunk_tokens = board.request().chunk_tokens;
  peers.Computes(
      context_.cost.fit().SecondsFor(slice.first * chunk_tokens, slice.count * chunk_tokens));
  for (int i = slice.first; i < slice.end(); ++i) {  // nobody has made these for it
    if (peers.state(i) == PeerState::kCame) peers.Set(i, PeerState::kFree);
  }
  if (!peers.asking()) AskAhead(board, slice.end());
}

void PeerLane::AskAhead(Board& board, int first) {
  const int end = first + board.request().slice_chunks_max;
  for (int i = first; i < std::min(end, board.claims().size()); ++i) {
    if (board.peers().state(i) == PeerState::kUnasked) return Ask(board, first, end);
  }
}

void PeerLane::Ask(Board& board, int first, int end) {
  ClaimCall call{.serial = board.serial()};
  const Claims& claims = board.claims();
  for (int i = first; i < std::min(end, claims.size()); ++i) {
    const bool missing = claims.state(i) != ChunkState::kResident && claims.tiers(i) == 0;
    if (!missing || board.peers().state(i) == PeerState::kMine) continue;
    call.chunks.push_back(i);
    call.keys.push_back(board.key(i));
  }
  board.peers().BeginAsk(context_.clock.Now());
  if (call.keys.empty()) return board.peers().EndAsk();
  const double lasts_s = kLastsPerSlice * SliceSeconds(board);
  call.lasts = std::max(options_.lasts_min, Seconds(lasts_s));
  parts_.calls.claims.push_back(std::move(call));
}

void PeerLane::Answered(Board& board, const ClaimCall& call,
                        const std::vector<ClaimState>& states) {
  PeerClaims& peers = board.peers();
  peers.EndAsk();
  bool behind = false;  // another's: nothing of it was asked for
  for (size_t i = 0; i < call.chunks.size() && !behind; ++i) {
    switch (states.empty() ? ClaimState::kNone : states[i]) {
      case ClaimState::kMine:
        TakeMine(board, call.chunks[i]);
        break;
      case ClaimState::kTheirs:
        peers.Set(call.chunks[i], PeerState::kTheirs);
        behind = true;
        break;
      case ClaimState::kStored:
        peers.Set(call.chunks[i], PeerState::kCame);
        break;
      case ClaimState::kNone:
        peers.Set(call.chunks[i], PeerState::kFree);
        break;
    }
  }
  // An answer about the slice that comes while it is computed already: the next one's comes in
  // time.
  const auto& slice = board.slice();
  const bool is_late = slice && !call.chunks.empty() && call.chunks[0] < slice->claim.end();
  if (is_late && !states.empty()) AskAhead(board, slice->claim.end());
}

// What was computed before the answer came is not offered to the store for others, nor what follows
// another path's chunks: they need not wait for it.
void PeerLane::TakeMine(Board& board, int chunk) {
  const bool is_late = board.claims().state(chunk) == ChunkState::kResident;
  const bool is_kept = !is_late && !board.mixes_paths();
  board.peers().Set(chunk, is_kept ? PeerState::kMine : PeerState::kFree);
  if (!is_kept) GiveBack(&board, chunk, board.key(chunk));
}

// What was claimed before a chunk of another path came.
void PeerLane::GiveBackMine(Board& board) {
  for (int i = board.claims().first_missing(); i < board.claims().size(); ++i) {
    if (board.peers().state(i) != PeerState::kMine) continue;
    board.peers().Set(i, PeerState::kFree);
    GiveBack(&board, i, board.key(i));
  }
}

void PeerLane::Ended(const Board& board) {
  const Claims& claims = board.claims();
  for (int i = claims.first_missing(); i < claims.size(); ++i) {
    if (board.peers().state(i) == PeerState::kMine && claims.state(i) != ChunkState::kResident) {
      GiveBack(&board, i, board.key(i));
    }
  }
}

void PeerLane::EndedBefore(const ClaimCall& call, const std::vector<ClaimState>& states) {
  for (size_t i = 0; i < states.size(); ++i) {
    if (states[i] == ClaimState::kMine) GiveBack(nullptr, call.chunks[i], call.keys[i]);
  }
}

void PeerLane::GiveBack(const Board* whose, int chunk, const ChunkKey& key) {
  const auto has_it = [&](Board* board) {
    return board != whose && chunk < board->claims().size() && board->key(chunk) == key &&
           board->peers().state(chunk) == PeerState::kMine;
  };
  if (!std::ranges::any_of(parts_.table.boards(), has_it)) parts_.calls.disclaims.push_back(key);
}

double PeerLane::TurnSeconds(double slice_s) const {
  const auto has_turns = [](const Board* board) { return !board->claims().done(); };
  return slice_s * static_cast<double>(std::ranges::count_if(parts_.table.boards(), has_turns));
}

double PeerLane::SliceSeconds(const Board& board) const {
  const RestoreRequest& request = board.request();
  return context_.cost.fit().SecondsFor(board.claims().first_missing() * request.chunk_tokens,
                                        request.slice_chunks_max * request.chunk_tokens);
}

}  // namespace kvcake
