// What a model thinks of tokens: log probabilities at temperature 1.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kvcake {

struct TokenLogprob {
  int32_t token = 0;
  float logprob = 0;
};

// How likely a token was, and the likeliest in its place.
struct TokenScore {
  float logprob = 0;
  std::vector<TokenLogprob> top = {};
};

// With the `count` likeliest (all, when there are fewer), ties by id; NaN is not among them. Right
// to 1e-5. One pass for the sum and one for the likeliest: scoring a prompt does this for each of
// its tokens, between the engine's steps.
TokenScore ScoreToken(std::span<const float> logits, int32_t token, int count);

}  // namespace kvcake
