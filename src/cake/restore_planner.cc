#include "cake/restore_planner.h"

#include <algorithm>
#include <cmath>

namespace kvcake {

const Plan& RestorePlanner::MakePlanFor(Board& board, int budget_chunks) {
  for (LoadLane& lane : lanes_) lane.UpdateEtas();
  const PlanBasis basis = Basis(board);
  Plan plan = MakePlan(View(board, basis, budget_chunks), context_.options.planner);
  const Claims& claims = board.claims();
  LoadQueue loads(claims, plan, static_cast<int>(lanes_.size()));
  board.set_plan(
      {.plan = std::move(plan),
       .loads = std::move(loads),
       .basis = basis,
       .first_missing = claims.first_missing(),
       .first_state = claims.done() ? ChunkState::kResident : claims.state(claims.first_missing()),
       .made = context_.clock.Now()});
  return board.plan()->plan;
}

Seconds RestorePlanner::HoldTime() const {
  return context_.options.plan_interval * table_.chunks();
}

bool RestorePlanner::Holds(const Board& board) const {
  const auto& held = board.plan();
  return held && context_.clock.Now() < held->made + HoldTime() && held->basis == Basis(board);
}

PlanBasis RestorePlanner::Basis(const Board& board) const {
  PlanBasis basis{.revision = board.claims().revision(),
                  .usable = UsableTiers(board),
                  .compute_known = context_.cost.fit().known(),
                  .computed = IsComputed(board),
                  .share_eighths = static_cast<int>(std::ceil(8 * board.share()))};
  for (size_t t = 0; t < lanes_.size(); ++t) {
    if (lanes_[t].estimate().known) basis.known |= 1u << t;
  }
  return basis;
}

bool RestorePlanner::IsComputed(const Board& board) const {
  if (board.share() > 0) return true;
  const auto& relatives = table_.Relatives(board);
  return std::any_of(relatives.begin(), relatives.end(), [&](const Board* other) {
    return other->share() > 0 && other->SameDocument(board);
  });
}

uint32_t RestorePlanner::UsableTiers(const Board& board) const {
  uint32_t usable = 0;
  for (size_t t = 0; t < lanes_.size(); ++t) {
    if (lanes_[t].Usable() && board.Trusts(static_cast<int>(t))) usable |= 1u << t;
  }
  return usable;
}

bool RestorePlanner::AwaitsLooks(const Board& board) const {
  if (board.looking() == 0 || context_.clock.Now() >= board.look_until()) return false;
  for (size_t t = 0; t < lanes_.size(); ++t) {
    if ((board.looking() >> t & 1) != 0 && !lanes_[t].stalled()) return true;
  }
  return false;
}

Seconds RestorePlanner::LookWait(const Board& board) const {
  // What is stored decides what is computed.
  if (board.FixedSplit()) return context_.options.stall_timeout;
  const ComputeFit fit = context_.cost.fit();
  if (!fit.known()) return context_.options.look_wait_max;
  const double tokens = board.request().chunk_tokens;
  const double first = board.claims().first_missing() * tokens;
  const double share = context_.options.planner.blind_wait_chunks;
  return std::min(context_.options.look_wait_max, Seconds(share * fit.SecondsFor(first, tokens)));
}

ComputeNeed RestorePlanner::Need(const Board& board) const {
  ComputeNeed need{.rank = board.rank()};
  if (AwaitsLooks(board)) return need;
  const Claims& claims = board.claims();
  const int first = claims.first_missing(), chunk_tokens = board.request().chunk_tokens;
  if (first < board.FixedSplit().value_or(claims.size())) {
    need.idle = context_.clock.Now() - board.progressed();
  }
  const uint32_t tiers = UsableTiers(board);
  const int compute_end =
      board.WantsLoads() ? board.request().forced_split.value_or(0) : claims.size();
  for (int i = first; i < claims.size(); ++i, ++need.fresh_chunks) {
    if (claims.state(i) != ChunkState::kAbsent) break;
    if (i >= compute_end && (claims.tiers(i) & tiers) != 0) break;
  }
  need.fresh_s =
      context_.cost.fit().SecondsFor(first * chunk_tokens, need.fresh_chunks * chunk_tokens);
  return need;
}

void RestorePlanner::UpdateRanks() {
  const auto& boards = table_.boards();
  const TimePoint now = context_.clock.Now();
  if (boards.size() == ranked_ && now < ranked_at_ + HoldTime()) return;
  ranked_ = boards.size();
  ranked_at_ = now;
  documents_ = Documents();
  if (boards.size() < 2) return;  // nobody asks
  const double chunk_s = LoadSeconds();
  for (Board* board : boards) table_.SetRank(*board, Rank(*board, chunk_s));
}

void RestorePlanner::UpdateRank(Board& board) { table_.SetRank(board, Rank(board, LoadSeconds())); }

double RestorePlanner::LoadSeconds() const {
  double interval_s = INFINITY;
  for (const LoadLane& lane : lanes_) {
    if (lane.estimate().known) interval_s = std::min(interval_s, lane.interval_s());
  }
  constexpr double kUnknown = 1e-3;  // any: the same for all
  return std::isfinite(interval_s) ? interval_s : kUnknown;
}

double RestorePlanner::Rank(const Board& board, double chunk_s) const {
  // What loading has to do with.
  const int left = board.claims().loading() + board.claims().AbsentIn(UsableTiers(board));
  return LoadRank(context_.options.load_order,
                  {.remaining_s = left * chunk_s,
                   .opened_s = Seconds(board.opened().time_since_epoch()).count(),
                   .serial = board.serial(),
                   .last_read = board.last_read()},
                  context_.options.load_aging);
}

int RestorePlanner::Documents() const {
  if (context_.options.load_order != LoadOrder::kFair) return 1;
  std::vector<const Board*> documents;
  for (const Board* board : table_.boards()) {
    if (!board->MayLoad()) continue;
    const auto same = [&](const Board* other) { return board->SameDocument(*other); };
    if (std::none_of(documents.begin(), documents.end(), same)) documents.push_back(board);
  }
  return std::max<int>(1, static_cast<int>(documents.size()));
}

// Requests on one document share their loads; different documents share the link: one after the
// other, or all at once.
TierView RestorePlanner::ViewTier(const Board& board, int tier) const {
  TierView view = lanes_[tier].View();
  if (context_.options.load_order == LoadOrder::kFair) {
    view.interval_s *= documents_;
    return view;
  }
  const auto left = [&](const Board& other) {
    return other.MayLoad() ? other.loads_left(tier) : 0;
  };
  int before = 0;
  for (const Board* other : table_.ranked()) {
    if (other == &board) break;
    before += left(*other);
  }
  for (const Board* other : table_.Relatives(board)) {
    if (InFlightTable::ByRank()(other, &board) && other->SameDocument(board))
      before -= left(*other);
  }
  view.drain_s += before * view.interval_s;
  return view;
}

const PlanInput& RestorePlanner::View(const Board& board, const PlanBasis& basis,
                                      int budget_chunks) {
  const RestoreRequest& request = board.request();
  const auto& boards = table_.boards();
  input_.compute = context_.cost.fit();
  const int full_tokens = static_cast<int>(request.keys.size()) * request.chunk_tokens;
  input_.last_token_s =
      request.prompt_tokens == full_tokens ? input_.compute.SecondsFor(full_tokens - 1, 1) : 0;
  input_.chunk_tokens = request.chunk_tokens;
  input_.slice_chunks_max = request.slice_chunks_max;
  input_.budget_chunks = std::min(budget_chunks, request.slice_chunks_max);
  if (board.share() > 0 && board.share() < 1) {  // a slice takes whole steps, however short it is
    const double step_tokens = input_.slice_chunks_max * input_.chunk_tokens;
    const double chunks = board.share() * input_.slice_chunks_max;
    input_.slice_chunks_max = std::max(1, static_cast<int>(chunks));
    input_.compute = input_.compute.InSteps(input_.slice_chunks_max / chunks, step_tokens);
  }
  input_.waiting = board.waiting();
  input_.predict = request.policy != Policy::kPublished;
  input_.fixed_split = board.FixedSplit();
  if (!basis.computed && !input_.fixed_split) input_.fixed_split = 0;
  input_.tiers.clear();
  for (size_t t = 0; t < lanes_.size(); ++t) {
    input_.tiers.push_back(ViewTier(board, static_cast<int>(t)));
  }
  ViewChunks(board, basis.usable);
  input_.compute_busy_s = 0;
  for (const Board* other : boards) {
    if (!other->slice()) continue;
    const double elapsed = (context_.clock.Now() - other->slice()->start).count();
    const double left = other->slice()->predicted_s - elapsed;
    input_.compute_busy_s = std::max({input_.compute_busy_s, left, -left});
  }
  return input_;
}

void RestorePlanner::ViewChunks(const Board& board, uint32_t usable) {
  using State = ChunkView::State;
  const Claims& claims = board.claims();
  input_.chunks.assign(claims.size(), {});
  for (int i = 0; i < claims.size(); ++i) {
    ChunkView& view = input_.chunks[i];
    view.tiers = claims.tiers(i) & usable;
    switch (claims.state(i)) {
      case ChunkState::kAbsent:
        break;
      case ChunkState::kElsewhere:  // unless a read of it is found below
        view.state = State::kComputing;
        break;
      case ChunkState::kLoading:
        view.state = State::kInFlight;
        break;
      case ChunkState::kComputing:
      case ChunkState::kResident:
        view.state = State::kResident;
        break;
    }
  }
  for (const LoadLane& lane : lanes_) {
    for (const auto& [number, read] : lane.reads()) {
      const int chunk = read.claim.first;
      if (read.owner == nullptr || chunk >= claims.size() || board.key(chunk) != read.key) continue;
      // It may be resident here: published by others since the read began.
      ChunkView& view = input_.chunks[chunk];
      if (view.state != State::kInFlight && view.state != State::kComputing) continue;
      view.state = State::kInFlight;
      view.eta_s = read.eta_s;
    }
  }
}

double RestorePlanner::Bound(const Board& board, std::optional<Seconds> tail) const {
  const RestoreRequest& request = board.request();
  PlanInput input;
  input.compute = context_.cost.fit();
  if (!input.compute.known()) return 0;
  input.chunk_tokens = request.chunk_tokens;
  input.slice_chunks_max = request.slice_chunks_max;
  uint32_t known = 0;
  for (size_t t = 0; t < lanes_.size(); ++t) {
    const TierEstimate& estimate = lanes_[t].estimate();
    input.tiers.push_back(
        {.known = true, .interval_s = lanes_[t].interval_s(), .drain_s = estimate.fixed_s});
    if (estimate.known) known |= 1u << t;
  }
  input.chunks = board.initial();
  for (ChunkView& chunk : input.chunks) chunk.tiers &= known;
  const double restored =
      MakePlan(input, {.compute_gain_min = 0, .compute_gain_min_s = 0}).finish_s;
  const int full = static_cast<int>(input.chunks.size()) * request.chunk_tokens;
  const int rest = std::max(1, request.prompt_tokens - full);  // logits need one token at least
  return restored + (tail ? tail->count() : input.compute.SecondsFor(full, rest));
}

}  // namespace kvcake
