// What a step computes, as a plain value: made by the StepPlanner, run by the Engine, committed by
// the StepCommitter.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "base/clock.h"
#include "cake/claims.h"
#include "engine/sequence.h"

namespace kvcake {

// One sequence's part of a step.
struct StepPart {
  Sequence* sequence = nullptr;
  int start = 0;
  int count = 0;
  Claim claim = {};                // count > 0: a restoring slice
  bool samples = false;            // the token that follows is chosen
  bool restores = false;           // loading might have brought it
  bool chained = false;            // the last part of a prompt that several ranks prefill
  std::vector<PageId> pages = {};  // of the sequence's first start + count tokens

  bool decodes() const { return sequence->state == Sequence::State::kDecoding; }
  // The rows of logits that the model returns, unless it samples itself.
  int logit_rows() const { return sequence->scores_prompt() ? count : samples ? 1 : 0; }
};

struct StepPlan {
  std::vector<StepPart> parts = {};
  // How far into its prompt the restoration is that shares the step with a StepBudget's others.
  std::optional<int> shared_at = {};
  TimePoint wake_at = TimePoint::max();  // with nothing to do: when to plan again

  bool chained() const { return !parts.empty() && parts[0].chained; }
};

// What running a plan took and gave.
struct StepRun {
  TimePoint began{};
  Seconds took{0};
  std::span<const float> logits = {};  // the model's, in the order of the parts
};

}  // namespace kvcake
