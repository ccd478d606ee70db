// Prompts that several ranks prefill, of which this process is the last (runahead/chain.h).
#pragma once

#include "base/clock.h"
#include "cake/restorer.h"
#include "engine/step_plan.h"
#include "model/model.h"
#include "runahead/chain.h"

namespace kvcake {

// Engine thread only.
class ChainPrefill {
 public:
  // Borrows all.
  ChainPrefill(ChainLeader& leader, ChainPlanner& planner, Model& model, const Restorer& restorer,
               const Clock& clock)
      : leader_(leader), planner_(planner), model_(model), restorer_(restorer), clock_(clock) {}

  // Before a prompt's restoration is opened: has the ranks prefill what is left of it after the
  // chunks at its beginning that are kept somewhere, where that pays. Every rank restores those for
  // itself first, so the sequence's keys are cut to them, and its `chain` is the job.
  void Divide(Sequence& sequence);
  // Runs the job of a chained part together with the other ranks; says so in the completion, and
  // ends the sequence's chain. An error is the end of the leader's, and the prompt is this
  // process's.
  [[nodiscard]] Result<StepRun> Run(const StepPart& part);

 private:
  ChainLeader& leader_;
  ChainPlanner& planner_;
  Model& model_;
  const Restorer& restorer_;
  const Clock& clock_;
};

}  // namespace kvcake
