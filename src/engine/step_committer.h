// Takes in what a step has computed: chunks and costs, scores and new tokens.
#pragma once

#include <optional>
#include <span>

#include "cake/cost_model.h"
#include "engine/chunk_keeper.h"
#include "engine/completions.h"
#include "engine/step_plan.h"
#include "model/model.h"

namespace kvcake {

// Whether the model samples this part's token: it does where nobody else wants the logits.
bool ModelSamples(const Model& model, const StepPart& part);

// Engine thread only.
class StepCommitter {
 public:
  // Borrows all.
  StepCommitter(const Model& model, ComputeCost& cost, ChunkKeeper& keeper,
                Completions& completions, const Clock& clock)
      : model_(model), cost_(cost), keeper_(keeper), completions_(completions), clock_(clock) {}

  // Commits every part in order: publishes what is full, hands out tokens, and finishes sequences
  // that have come to their end. To be called before the model's next forward pass.
  void Commit(const StepPlan& plan, const StepRun& run);

 private:
  // What a step made of one part: its rows of logits, or the token that the model has sampled.
  struct PartResult {
    Seconds took{0};
    bool alone = false;  // nobody shared the step
    std::span<const float> logits = {};
    std::optional<int32_t> token = {};
  };

  void LearnCost(const StepPlan& plan, Seconds took);
  void CommitPart(const StepPart& part, const PartResult& result);
  void ScorePrompt(const StepPart& part, std::span<const float> logits);
  void AcceptToken(Sequence& sequence, int32_t token, std::span<const float> logits);

  const Model& model_;
  ComputeCost& cost_;
  ChunkKeeper& keeper_;
  Completions& completions_;
  const Clock& clock_;
};

}  // namespace kvcake
