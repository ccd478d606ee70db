// Prompts that several ranks prefill, of which this process is the last (runahead/chain.h).
#pragma once

#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "cake/cost_model.h"
#include "cake/restorer.h"
#include "engine/admission.h"
#include "engine/patient_look.h"
#include "engine/step_plan.h"
#include "model/model.h"
#include "runahead/chain.h"

namespace kvcake {

// Engine thread only.
class ChainPrefill {
 public:
  // Lies between two surveys of the ranks' links at least.
  static constexpr Seconds kSurveyEvery{60};

  // Borrows all. `on_layer` is called at each layer of what Run computes.
  ChainPrefill(ChainLeader& leader, ChainPlanner& planner, Admission& admission, Model& model,
               const Restorer& restorer, const ComputeCost& cost, std::function<void()> on_layer,
               const Clock& clock)
      : leader_(leader),
        planner_(planner),
        admission_(admission),
        model_(model),
        restorer_(restorer),
        look_(restorer, clock),
        cost_(cost),
        on_layer_(std::move(on_layer)),
        clock_(clock),
        survey_at_(clock.Now() + kSurveyEvery) {}

  // Before the restoration of a prompt that runs is opened: has the ranks prefill what is left of
  // it after the chunks at its beginning that every rank has kept somewhere, where that pays and
  // there are pages that ranks can send into, its own. Each restores those chunks for itself first,
  // so the sequence's keys are cut to them, and its `chain` is the job.
  // Asks stores and ranks what they hold, and waits for stores a little. An error is the end of the
  // leader's.
  [[nodiscard]] Status Divide(Sequence& sequence);
  // Whether a prompt should start after one that runs, whose chain prefills most of what it needs,
  // and find that. Where what ranks send is kept nowhere none does: Divide leaves it undivided.
  bool ShouldWait(const Sequence& sequence) const;
  // Runs the job of a chained part together with the other ranks; says so in the completion, and
  // ends the sequence's chain. An error is the end of the leader's, and the prompt is this
  // process's.
  [[nodiscard]] Result<StepRun> Run(const StepPart& part);

 private:
  // Whether the chain of one that runs prefills most of what the prompt needs, too.
  bool IsUnderWay(const Sequence& sequence) const;
  Status SurveyLinks();
  // Where the chain begins in the end.
  Result<int> LowerOrigin(const Sequence& sequence, std::optional<RankJob>* job);
  // How many tokens at the beginning of a prompt need not be computed, of which these chunks are
  // kept; none: more is kept behind a hole.
  std::optional<int> OriginOf(const Sequence& sequence, const std::vector<bool>& kept) const;
  // The job of what follows `origin`; none: one process is as fast.
  std::optional<RankJob> JobAfter(const Sequence& sequence, std::optional<int> origin);
  std::vector<bool> Look(const Sequence& sequence);
  bool RanksMay(const RankJob& job) const;

  ChainLeader& leader_;
  ChainPlanner& planner_;
  Admission& admission_;
  Model& model_;
  const Restorer& restorer_;
  PatientLook look_;
  const ComputeCost& cost_;
  const std::function<void()> on_layer_;
  const Clock& clock_;
  TimePoint survey_at_;  // links are measured no sooner, which they were when ranks met
};

}  // namespace kvcake
