// From logits to a token.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/status.h"
#include "ops/sample.h"

namespace kvcake {

// Applied in this order: biases, penalties, temperature, min_p, top_k, top_p.
struct SamplingParams {
  double temperature = 0;  // 0: greedy, and the fields below it have no effect
  double min_p = 0;        // cut what is less likely than this share of the likeliest
  int top_k = 0;           // 0: all
  double top_p = 1;
  uint64_t seed = 0;

  double repetition_penalty = 1;  // divides what the prompt or the answer holds; 1: none
  double presence_penalty = 0;    // taken off what the answer holds
  double frequency_penalty = 0;   // taken off for each time that the answer holds it

  std::vector<std::pair<int32_t, float>> logit_bias = {};  // added to the logits of these tokens

  bool penalises() const {
    return repetition_penalty != 1 || presence_penalty != 0 || frequency_penalty != 0;
  }
  // The logits are changed before a token is chosen from them.
  bool edits_logits() const { return penalises() || !logit_bias.empty(); }
};

// kInvalidArgument names the field that makes no sense.
[[nodiscard]] Status Validate(const SamplingParams& params);

// How the token for `position` (its index in the sequence) is chosen, but for the penalties.
// Randomness is a function of (seed, position) alone, so an answer does not depend on batching,
// restarts or how its prefix was restored.
RowSampling SamplingAt(const SamplingParams& params, int position);
int32_t Sample(std::span<const float> logits, const SamplingParams& params, int position);

// Applies the penalties for what was said. Ids outside of the logits are ignored.
void Penalise(const SamplingParams& params, std::span<const int32_t> prompt,
              std::span<const int32_t> answer, std::span<float> logits);

// The token that follows `tokens`, of which the first `prompt` are the prompt: biases, penalties
// and all. None of `banned`, whatever their logits are.
int32_t Choose(std::span<const float> logits, const SamplingParams& params,
               std::span<const int32_t> tokens, size_t prompt,
               std::span<const int32_t> banned = {});

}  // namespace kvcake
