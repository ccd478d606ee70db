// Choosing tokens where the logits are.
#pragma once

#include <cstdint>
#include <span>

#include "ops/compute.h"

namespace kvcake {

// How the token of one row is chosen, in this order: temperature, min_p, top_k, top_p, and of those
// left, side by side in the order of their ids, the one that `uniform` points to. Of equals the
// lowest id is the likeliest. NaN is never chosen unless everything is NaN (then token 0).
struct RowSampling {
  double temperature = 0;  // 0: the likeliest, as where that is infinite; the rest has no effect
  double min_p = 0;        // cut what is less likely than this share of the likeliest
  double top_p = 1;        // above 0: the fewest likeliest that together reach this share
  double uniform = 0;      // from [0, 1)
  int32_t top_k = 0;       // so many of the likeliest; 0: all
};

// [rows][stride] f32, of which each row has its first `vocab`, up to kSampledVocabMax.
struct LogitRows {
  const float* data = nullptr;
  int64_t vocab = 0;
  int64_t stride = 0;
};
constexpr int64_t kSampledVocabMax = 1 << 24;

// tokens[i] = the token of row i, chosen by rows[i]. A token's weight, e^((logit - the likeliest's)
// / temperature), is a whole multiple of 2^-39: sums are exact in any order, and every path takes
// the same token from the same logits.
void SampleTokens(const Compute& compute, const LogitRows& logits,
                  std::span<const RowSampling> rows, int32_t* tokens);

// One row's, all of it the host's.
int32_t SampleToken(std::span<const float> logits, const RowSampling& sampling);

}  // namespace kvcake
