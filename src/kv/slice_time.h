// How long a slice of compute takes, as a formula: what a fit finds, a profile states, and planners
// and chains count with.
#pragma once

#include <algorithm>

namespace kvcake {

struct SliceTime {
  // kCausal: t = c0 + g L + b x + a (2 L x + x^2) seconds for x new tokens after L.
  // kDense: t = max(floor, c0 + b x + a x (L + x)): every score, then a mask, as the papers' GPUs
  // computed it.
  enum class Attention { kCausal, kDense };

  Attention attention = Attention::kCausal;
  double c0 = 0, g = 0, b = 0, a = 0, floor = 0;

  // A step that computes these tokens alone.
  double SecondsFor(double prefix, double tokens) const {
    return std::max(floor, c0 + MarginalSecondsFor(prefix, tokens));
  }
  // What they add to a step that others pay c0 for.
  double MarginalSecondsFor(double prefix, double tokens) const {
    return AddedTo(0, prefix, tokens);
  }
  // These seconds and, one after the other, the terms that MarginalSecondsFor sums.
  double AddedTo(double seconds, double prefix, double tokens) const {
    const double columns = attention == Attention::kDense ? prefix + tokens : 2 * prefix + tokens;
    return seconds + g * prefix + b * tokens + a * tokens * columns;
  }
};

}  // namespace kvcake
