// What the CPU and the CUDA device compute of a row of logits, to the same bits: nothing here is
// contracted to a fused multiply-add (-ffp-contract=off, -fmad=false). Private to this room.
#pragma once

#include <cstdint>
#include <cstring>

#include "ops/sample.h"

#ifdef __CUDACC__
#define KVCAKE_EVERYWHERE __host__ __device__
#else
#define KVCAKE_EVERYWHERE
#endif

namespace kvcake {

KVCAKE_EVERYWHERE inline uint64_t BitsOf(double x) {
  uint64_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return bits;
}
KVCAKE_EVERYWHERE inline double DoubleOf(uint64_t bits) {
  double x;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
}

// The order of floats, zeros alike; NaN is 0, below all others.
KVCAKE_EVERYWHERE inline uint32_t OrderKey(float x) {
  const float without_minus_0 = x + 0.0f;
  uint32_t bits;
  std::memcpy(&bits, &without_minus_0, sizeof(bits));
  const uint32_t flipped = bits >> 31 ? ~0u : 1u << 31;
  return x == x ? bits ^ flipped : 0;
}

// The order of tokens by likelihood: of equals the lowest id is the highest.
KVCAKE_EVERYWHERE inline uint64_t Rank(float logit, int64_t id) {
  return static_cast<uint64_t>(OrderKey(logit)) << 32 | static_cast<uint32_t>(~id);
}
KVCAKE_EVERYWHERE inline int32_t IdOf(uint64_t rank) {
  return static_cast<int32_t>(~static_cast<uint32_t>(rank));
}

// Weights of one row's logits. The sum of kSampledVocabMax of them is at most 2^63.
class Weigher {
 public:
  // `best` is the largest logit, and finite; the temperature is not 0.
  KVCAKE_EVERYWHERE Weigher(float best, const RowSampling& sampling)
      : best_(best), scale_(kLog2E / sampling.temperature), least_(sampling.min_p * kOne) {
    if (scale_ > kScaleMax) scale_ = kScaleMax;  // infinity would make 0 NaN
  }

  // In 2^-39 of the best one's; 0 for what is less, or cut by min_p, and NaN.
  KVCAKE_EVERYWHERE uint64_t operator()(float logit) const {
    const double log2 = (logit - best_) * scale_;
    const double rounded = log2 + kRounding, whole = rounded - kRounding;
    const uint64_t exponent = BitsOf(rounded) + 1023 + kBits;  // of the whole in its last bits
    const double weight = Exp2(log2 - whole) * DoubleOf(exponent << 52);
    return log2 >= -kBits && weight >= least_ ? static_cast<int64_t>(weight) : 0;
  }

 private:
  static constexpr int kBits = 39;
  static constexpr double kOne = static_cast<double>(int64_t{1} << kBits);
  static constexpr double kLog2E = 1.4426950408889634;
  static constexpr double kScaleMax = 1e300;
  static constexpr double kRounding = 0x1.8p52;  // to it, only whole numbers can be added

  // Takes x from -0.5 to 0.5, and is right to 2^-42: Taylor's series.
  KVCAKE_EVERYWHERE static double Exp2(double x) {
    const double y = x * 0.6931471805599453;
    const double tail =
        1.0 / 720 + y * (1.0 / 5040 + y * (1.0 / 40320 + y * (1.0 / 362880 + y * (1.0 / 3628800))));
    return 1 +
           y * (1 + y * (1.0 / 2 + y * (1.0 / 6 + y * (1.0 / 24 + y * (1.0 / 120 + y * tail)))));
  }

  double best_;
  double scale_;
  double least_;
};

// The first so many of `total` units that make a share of them: at least one.
KVCAKE_EVERYWHERE inline uint64_t UnitsOfShare(double share, uint64_t total) {
  if (share >= 1) return total;
  const double exact = share * static_cast<double>(total);
  auto units = static_cast<uint64_t>(exact);
  if (static_cast<double>(units) < exact || units == 0) ++units;
  return units < total ? units : total;
}

// Which of `total` units, counted from 1, a uniform number from [0, 1) points to.
KVCAKE_EVERYWHERE inline uint64_t UnitAt(double uniform, uint64_t total) {
  const auto before = static_cast<uint64_t>(uniform * static_cast<double>(total));
  return (before < total ? before : total - 1) + 1;
}

}  // namespace kvcake
