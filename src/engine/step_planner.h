// Decides what a step computes: the token budget goes to decodes first, then to prompts.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "cake/cost_model.h"
#include "cake/prefill_order.h"
#include "engine/admission.h"
#include "engine/prefill_turns.h"
#include "engine/step_budget.h"
#include "engine/step_plan.h"
#include "kv/page_pool.h"

namespace kvcake {

struct StepPlannerOptions {
  int slice_tokens = 512;       // the token budget of a step; at least a chunk
  int max_batch_tokens = 1024;  // the most that a step can hold; room for a chunk beside decodes
  // Bounds the tokens of scored prompts in a step: each of them has logits, which take memory.
  int scored_tokens_max = 512;
  Seconds step_max{0};  // while anything decodes, slices are expected to end by then; 0: no limit
  Schedule schedule = Schedule::kAdaptive;
  Seconds restore_wait_max{1};                       // OrderPrefills'
  NumericPath numeric_path = NumericPath::kUnknown;  // of what the model computes
};

// Knows no model, only pages, sequences and what slices are expected to take. Engine thread only.
class StepPlanner {
 public:
  // Borrows all.
  StepPlanner(PagePool& pool, Admission& admission, const ComputeCost& cost, const Clock& clock,
              const StepPlannerOptions& options)
      : pool_(pool), admission_(admission), cost_(cost), clock_(clock), options_(options) {}

  // Restorations get what this says from now on; null: all that is left. Borrows it.
  void SetBudget(StepBudget* budget) { budget_ = budget; }

  // Plans the next step of those that run: promises and draws pages for what they compute, which
  // may preempt the youngest, claims the chunks of slices that restore, and ends restorations that
  // are done. A prompt that several ranks prefill has a step of its own, and one step of all others
  // follows it, so that answers go on however many such prompts there are.
  StepPlan Plan();

 private:
  class Turns;

  std::optional<StepPlan> PlanChained();
  StepPlan PlanShared();
  void PlanDecodes(StepPlan* plan);
  void PlanPrefills(int budget, StepPlan* plan);
  int PlanPrefill(Sequence& sequence, int tokens_max, StepPlan* plan);
  StepPart RestoringPart(Sequence& sequence, const Claim& claim, int tokens_max);
  void EndRestorationIfDone(Sequence& sequence);
  std::optional<PrefillNeed> NeedOf(const Sequence& sequence, const ComputeFit& fit,
                                    TimePoint now) const;
  bool EnsurePages(Sequence& sequence, int tokens);
  void NoteShortage(Sequence& sequence, bool lacks_pages) const;
  int chunk_tokens() const { return pool_.layout().chunk_tokens; }

  PagePool& pool_;
  Admission& admission_;
  const ComputeCost& cost_;
  const Clock& clock_;
  const StepPlannerOptions options_;
  StepBudget* budget_ = nullptr;  // may be null
  bool was_chained_ = false;      // the last step
};

}  // namespace kvcake
