// The part of a step in which prompts take turns: who is asked in which order, and what is left of
// the step for each. It knows no model and no pages, so that the engine and whoever simulates it
// run the same loop.
#pragma once

#include <optional>
#include <vector>

#include "base/clock.h"
#include "cake/claims.h"
#include "cake/prefill_order.h"
#include "cake/restorer.h"

namespace kvcake {

// What one step has for prompts.
struct PrefillBudget {
  int tokens = 0;  // that prompts may compute
  // That the step can hold: a prompt of which chunks are missing gets one beyond `tokens`.
  int room_tokens = 0;
  int chunk_tokens = 128;
  Schedule schedule = Schedule::kAdaptive;
  Seconds restore_wait_max{1};  // OrderPrefills'
  // If given, restorations get no more than this of `tokens`, and others fill up the step.
  std::optional<ComputeBudget> restorations = {};
};

// What each turn does. Indices are those of the needs; every need has one turn a step.
class PrefillTaker {
 public:
  virtual ~PrefillTaker() = default;
  // A prompt that is not restoring may compute so many tokens, 0 included; returns how many it
  // does.
  virtual int Prefill(int index, int tokens_max) = 0;
  // Asks a restoration what it would do with so much.
  virtual ComputeTurn Ask(int index, const ComputeBudget& budget) = 0;
  // It computes a slice: the claim, and what follows it up to tokens_max tokens in all. Returns
  // what that takes of the step, in tokens: all that is left, where a step is one slice.
  virtual int Restore(int index, const Claim& claim, int tokens_max) = 0;
};

// What the turns came to.
struct PrefillTurns {
  // When to ask again if nobody computes anything.
  TimePoint wake_at = TimePoint::max();
  // The chunk from which on the first restoration got a slice, or wants one and got no budget.
  std::optional<int> wanted_chunk = {};
};

// The need of a restoration that was asked for so long ago.
PrefillNeed RestorationNeed(const ComputeNeed& need, double age_s);

// needs: in order of arrival. Gives each its turn, and what those before it have left.
PrefillTurns TakePrefillTurns(const PrefillBudget& budget, const std::vector<PrefillNeed>& needs,
                              TimePoint now, PrefillTaker& taker);

}  // namespace kvcake
