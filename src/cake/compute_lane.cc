#include "cake/compute_lane.h"

#include <algorithm>

#include "base/check.h"

namespace kvcake {
namespace {

constexpr Seconds kPageRetry{10e-3};  // nobody tells when a page becomes free

}  // namespace

ComputeTurn ComputeLane::NextTurn(Board& board, const ComputeBudget& budget) {
  const TimePoint now = context_.clock.Now();
  if (!budget.alone) board.NoteOthers();
  ComputeTurn turn{.kind = ComputeTurn::Kind::kWait};
  if (board.slice()) {
    turn.wait_until = now + kPageRetry;
    return turn;
  }
  if (parts_.planner.AwaitsLooks(board)) {
    board.AddReason("waiting to hear what is stored");
    turn.wait_until = board.look_until();
    return turn;
  }
  board.set_share(budget.share);
  if (loads_.lacks_pages()) loads_.Pump();
  const bool plans = !TurnHolds(board, budget);
  if (plans) {
    loads_.Pump();
    parts_.planner.MakePlanFor(board, budget.chunks);
  }
  const Plan& plan = board.plan()->plan;
  if (plan.slice_chunks > 0) {
    if (budget.chunks == 0) {
      return {.kind = ComputeTurn::Kind::kStarved,
              .claim = {.first = board.claims().first_missing()}};
    }
    const PeerTurn peers = peers_.NextTurn(board);
    if (peers.chunks > 0) {
      turn = StartSlice(board, plan, peers.chunks);
    } else {
      board.AddReason(peers.reason);
      turn.wait_until = peers.wait_until;
    }
  } else {
    const Seconds wait = std::max(Seconds(plan.wait_s), parts_.planner.HoldTime());
    turn.wait_until = board.plan()->made + wait;
    if (board.share() == 0) {
      board.AddReason("other requests have the compute: loads only");
    } else {
      board.NoteTurn(plan);
      board.set_waiting();
    }
  }
  if (plans) loads_.Pump();  // what the new plan leaves to them
  if (turn.kind == ComputeTurn::Kind::kWait && loads_.lacks_pages()) {
    turn.wait_until = std::min(turn.wait_until, now + kPageRetry);
    turn.lacks_pages = true;
  }
  return turn;
}

// What the last plan says may be said again: a slice is begun by a new one only.
bool ComputeLane::TurnHolds(const Board& board, const ComputeBudget& budget) const {
  if (!parts_.planner.Holds(board)) return false;
  const HeldPlan& held = *board.plan();
  const int first = board.claims().first_missing();
  if (first != held.first_missing || board.claims().state(first) != held.first_state) return false;
  return held.plan.slice_chunks == 0 || budget.chunks == 0;
}

ComputeTurn ComputeLane::ClaimFront(Board& board, int chunks) {
  if (board.slice()) {
    return {.kind = ComputeTurn::Kind::kWait, .wait_until = context_.clock.Now() + kPageRetry};
  }
  if (!board.plan()) parts_.planner.MakePlanFor(board, chunks);
  // None after the first missing chunk is resident yet, up to where the claim ends.
  const Claims& claims = board.claims();
  size_t count = 0;
  for (int i = claims.first_missing(); i < claims.size() && chunks-- > 0; ++i, ++count) {
    if (claims.state(i) == ChunkState::kResident) break;
  }
  board.AddReason(fmt::format("the engine has claimed {} chunks at token {}", count,
                              claims.first_missing() * board.request().chunk_tokens));
  const ComputeTurn turn = BeginSlice(board, PageTable(count));
  loads_.Pump();
  return turn;
}

ComputeTurn ComputeLane::StartSlice(Board& board, const Plan& plan, int chunks) {
  if (board.request().private_slices) {
    board.NoteTurn(plan);
    return BeginSlice(board, PageTable(chunks));
  }
  PageTable drawn;
  while (static_cast<int>(drawn.size()) < chunks) {
    auto page = context_.pool.Draw();
    if (!page) break;
    drawn.push_back(std::move(*page));
  }
  if (drawn.empty()) {
    board.AddReason("waiting for a free page");
    return {.kind = ComputeTurn::Kind::kWait,
            .wait_until = context_.clock.Now() + kPageRetry,
            .lacks_pages = true};
  }
  board.NoteTurn(plan);
  return BeginSlice(board, std::move(drawn));
}

// Private slices have pages that are none.
ComputeTurn ComputeLane::BeginSlice(Board& board, PageTable pages) {
  std::vector<int> taken;
  const Claim claim = board.ClaimSlice(std::move(pages), &taken);
  const RestoreRequest& request = board.request();
  for (int chunk : taken) {
    if (request.private_slices) {
      loads_.Yield(board, chunk);
    } else {
      loads_.TakeOver(board, chunk);
    }
  }
  if (!request.private_slices) parts_.table.Claimed(board, claim);
  // Others fill a step that is shared.
  const int chunks = board.share() < 1 ? request.slice_chunks_max : claim.count;
  board.BeginSlice({.claim = claim,
                    .predicted_s = context_.cost.fit().SecondsFor(
                        claim.first * request.chunk_tokens, chunks * request.chunk_tokens),
                    .delivered = Delivered()});
  peers_.Began(board, claim);
  return {.kind = ComputeTurn::Kind::kSlice, .claim = claim};
}

uint64_t ComputeLane::Delivered() const {
  uint64_t sum = 0;
  for (const LoadLane& lane : parts_.lanes) sum += lane.delivered();
  return sum;
}

void ComputeLane::Restored(const Board& board) {
  const RestoreRequest& request = board.request();
  // Others' prompts and answers make it later, too, and other processes.
  const bool alone = parts_.table.boards().size() == 1 && board.share() == 1 && board.alone() &&
                     !board.peers().has_waited();
  if (request.policy != Policy::kCake || request.forced_split || !alone) return;
  double late_s = board.Lateness();
  // What noise can do is not the lanes' doing.
  const double noise_s = context_.cost.fit().noise * board.planned_s();
  if (late_s > 0) late_s = std::max(late_s - noise_s, 0.0);
  for (LoadLane& lane : parts_.lanes) {
    if (board.planned_s() > 0) {
      lane.cost().AddBeside(late_s, board.beside());
    } else {
      lane.cost().ForgetBeside();
    }
  }
}

void ComputeLane::Computed(Board& board, int chunks) {
  const Claim claim = board.slice()->claim;
  CHECK(chunks == claim.count || (board.request().private_slices && chunks < claim.count));
  if (chunks > 0) board.CountBeside(Delivered() - board.slice()->delivered);
  board.PublishSlice(chunks);
  if (board.request().private_slices) {
    // Others may have loaded some of the rest meanwhile, or be at it.
    return parts_.table.FindMade(board, claim.first + chunks, claim.end(), context_.pool);
  }
  for (int i = claim.first; i < claim.end(); ++i) {
    parts_.table.Publish(i, board.key(i), board.pages()[i], &board);
  }
}

}  // namespace kvcake
