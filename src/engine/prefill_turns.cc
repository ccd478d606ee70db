#include "engine/prefill_turns.h"

#include <algorithm>

namespace kvcake {
namespace {

// What is left of a step as its turns go by.
class StepLeft {
 public:
  explicit StepLeft(const PrefillBudget& budget)
      : budget_(budget),
        tokens_(budget.tokens),
        room_(budget.room_tokens),
        restorations_(budget.restorations) {}

  int tokens() const { return tokens_; }

  // The last tokens of other prompts, one after the other, must not hold up a chunk for ever: the
  // first slice has room for one. A restoration gets no more than its share.
  void ForceChunk(bool restoring) {
    const int chunk = budget_.chunk_tokens;
    if (sliced_ || tokens_ >= chunk || room_ < chunk || (restoring && restorations_)) return;
    tokens_ = chunk;
    sliced_ = true;
  }

  ComputeBudget ForRestoration(std::optional<int> chunks_max) const {
    const int chunk = budget_.chunk_tokens;
    const double share =
        tokens_ < chunk ? 0 : std::min(1.0, static_cast<double>(tokens_) / budget_.tokens);
    ComputeBudget compute{.chunks = tokens_ / chunk, .share = share};
    if (restorations_) {
      compute = {.chunks = std::clamp(restorations_->chunks, 0, compute.chunks),
                 .share = restorations_->share};
    }
    if (chunks_max) compute.chunks = std::min(compute.chunks, *chunks_max);
    return compute;
  }

  // What a slice of so many chunks and the prompt's last tokens may take together.
  int SliceMax(int chunks) const {
    return restorations_ ? std::min(tokens_, chunks * budget_.chunk_tokens) : tokens_;
  }

  void Prefilled(int tokens) {
    tokens_ -= tokens;
    room_ -= tokens;
  }

  void Restored(int tokens) {
    const int chunk = budget_.chunk_tokens;
    Prefilled(tokens);
    sliced_ = true;
    if (restorations_) restorations_->chunks -= (tokens + chunk - 1) / chunk;
  }

 private:
  const PrefillBudget& budget_;
  int tokens_, room_;
  std::optional<ComputeBudget> restorations_;
  bool sliced_ = false;
};

}  // namespace

PrefillNeed RestorationNeed(const ComputeNeed& need, double age_s) {
  return {.fresh_chunks = need.fresh_chunks,
          .restoring = true,
          .fresh_s = need.fresh_s,
          .age_s = age_s,
          .idle = need.idle,
          .rank = need.rank};
}

PrefillTurns TakePrefillTurns(const PrefillBudget& budget, const std::vector<PrefillNeed>& needs,
                              TimePoint now, PrefillTaker& taker) {
  PrefillTurns turns;
  StepLeft left(budget);
  const auto wants = [&](const ComputeTurn& turn) {
    if (!turns.wanted_chunk) turns.wanted_chunk = turn.claim.first;
  };
  for (const PrefillTurn& next : OrderPrefills(budget.schedule, needs, budget.restore_wait_max)) {
    const PrefillNeed& need = needs[next.index];
    if (need.restoring || need.fresh_chunks > 0) left.ForceChunk(need.restoring);
    if (!need.restoring) {
      left.Prefilled(taker.Prefill(next.index, left.tokens()));
      continue;
    }
    const ComputeBudget compute = left.ForRestoration(next.chunks_max);
    const ComputeTurn turn = taker.Ask(next.index, compute);
    switch (turn.kind) {
      case ComputeTurn::Kind::kDone:  // the last load came just now
        turns.wake_at = now;
        break;
      case ComputeTurn::Kind::kWait:
        turns.wake_at = std::min(turns.wake_at, turn.wait_until);
        break;
      case ComputeTurn::Kind::kStarved:
        wants(turn);
        break;
      case ComputeTurn::Kind::kSlice:
        wants(turn);
        left.Restored(taker.Restore(next.index, turn.claim, left.SliceMax(compute.chunks)));
        break;
    }
  }
  return turns;
}

}  // namespace kvcake
