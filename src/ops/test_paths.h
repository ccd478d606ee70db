// For tests of kernels: every numeric path, those that this machine lacks skipped by name, and
// seeded random values.
#pragma once

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "ops/bf16.h"
#include "ops/compute.h"

namespace kvcake {

class PathTest : public testing::TestWithParam<NumericPath> {
 protected:
  void SetUp() override {
    if (!PathAvailable(GetParam())) {
      GTEST_SKIP() << "this machine cannot run " << NumericPathName(GetParam());
    }
  }
};

#define KVCAKE_EVERY_PATH(suite)                                                       \
  INSTANTIATE_TEST_SUITE_P(                                                            \
      Paths, suite,                                                                    \
      testing::Values(NumericPath::kBf16Dot, NumericPath::kF32Fma, NumericPath::kF32), \
      [](const auto& info) {                                                           \
        std::string name = NumericPathName(info.param);                                \
        std::erase(name, '-');                                                         \
        return name;                                                                   \
      })

inline std::vector<float> RandomFloats(std::mt19937& rng, int64_t n, float scale = 1.0f) {
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<float> values(n);
  for (float& value : values) value = normal(rng);
  return values;
}

inline std::vector<uint16_t> RandomBf16(std::mt19937& rng, int64_t n, float scale = 1.0f) {
  std::vector<uint16_t> values;
  for (float value : RandomFloats(rng, n, scale)) values.push_back(F32ToBf16(value));
  return values;
}

// One element of activations, as f32.
inline float ElementAt(NumericPath path, const Activations& a, int64_t row, int64_t i) {
  const int64_t at = row * a.stride + i;
  if (path == NumericPath::kBf16Dot) return Bf16ToF32(reinterpret_cast<uint16_t*>(a.data)[at]);
  return reinterpret_cast<float*>(a.data)[at];
}

// x[rows][k] as activations of the path.
inline void SetActivations(NumericPath path, const std::vector<float>& x, const Activations& a) {
  for (int64_t row = 0; row < a.rows; ++row) {
    for (int64_t i = 0; i < a.k; ++i) {
      const int64_t at = row * a.stride + i;
      if (path == NumericPath::kBf16Dot) {
        reinterpret_cast<uint16_t*>(a.data)[at] = F32ToBf16(x[row * a.k + i]);
      } else {
        reinterpret_cast<float*>(a.data)[at] = x[row * a.k + i];
      }
    }
  }
}

}  // namespace kvcake
