// From logits to a token.
#pragma once

#include <cstdint>
#include <span>

#include "base/status.h"

namespace kvcake {

struct SamplingParams {
  double temperature = 0;  // 0: greedy, and the other fields have no effect
  int top_k = 0;           // 0: all
  double top_p = 1;
  uint64_t seed = 0;
};

// kInvalidArgument names the field that makes no sense.
[[nodiscard]] Status Validate(const SamplingParams& params);

// The token for `position` (its index in the sequence). Randomness is a function of (seed,
// position) alone, so an answer does not depend on batching, restarts or how its prefix was
// restored. Greedy takes the lowest id among equals. NaN is never chosen unless everything is NaN
// (then token 0).
int32_t Sample(std::span<const float> logits, const SamplingParams& params, int position);

// Natural logarithm of the probability of `token` at temperature 1.
float LogProbability(std::span<const float> logits, int32_t token);

}  // namespace kvcake
