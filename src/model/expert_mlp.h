// The MLP of a mixture of experts.
#pragma once

#include <cstdint>

#include "model/config.h"
#include "model/weights.h"
#include "ops/compute.h"
#include "ops/experts.h"

namespace kvcake {

// Scratch of up to max_rows rows, for one layer after the other. Borrows the Compute. Of the CPU.
class ExpertMlp {
 public:
  ExpertMlp(const Compute& compute, const ModelConfig& config, int64_t max_rows);
  // Its bytes.
  static uint64_t MemoryFor(const ModelConfig& config, int64_t max_rows, NumericPath path);

  // Adds to x, the residual stream, what the experts of each row of `normed` make of it: in the
  // experts' order, whatever rows are beside it.
  void Add(const LayerWeights& layer, const Activations& normed, float* x);

 private:
  const Compute& compute_;
  const int64_t hidden_;
  ExpertRoutes routes_;
  Buffer logits_;           // [max_rows][experts] f32, the router's
  ActivationBuffer taken_;  // [max_rows][hidden], of one expert, as the next two
  ActivationBuffer gated_;  // [max_rows][intermediate]
  Buffer out_;              // [max_rows][hidden] f32
};

}  // namespace kvcake
