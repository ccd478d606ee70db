// What tests of operations on a CUDA device start from. Skipped where there is no device.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <random>
#include <vector>

#include "ops/matmul.h"
#include "ops/paths_testing.h"

namespace kvcake {

inline constexpr NumericPath kCuda = NumericPath::kBf16Tensor;

struct ProductShape {
  int64_t rows, n, k;
};

class CudaTest : public testing::Test {
 protected:
  void SetUp() override {
    if (const auto device = CudaDevice::Get(); !device) GTEST_SKIP() << device.error().message;
    cuda_ = std::make_unique<Compute>(threads_, kCuda);
  }

  template <typename T>
  static Buffer Put(const std::vector<T>& values) {
    return ToKernels(kCuda, values);
  }
  template <typename T>
  static std::vector<T> Get(const T* from, int64_t count) {
    return FromKernels(kCuda, from, count);
  }
  // Values that are the same in f32 and in bf16.
  std::vector<float> Bf16Floats(int64_t n, float scale = 1.0f) {
    std::vector<float> values;
    for (const uint16_t bits : RandomBf16(rng_, n, scale)) values.push_back(Bf16ToF32(bits));
    return values;
  }

  // A matrix and what enters it, here and there; the biases are added to its halves.
  struct Layer {
    int64_t rows, n, k;
    std::vector<float> x;
    std::vector<uint16_t> w;
    std::vector<float> bias;

    WeightRows Half(int i, bool biased = true) const {
      return {w.data() + i * (n / 2) * k, WeightType::kBf16, n / 2,
              biased ? &bias[i * (n / 2)] : nullptr};
    }
    PackedMatrix Pack(const Compute& compute, bool biased = true) const {
      const WeightRows parts[] = {Half(0, biased), Half(1, biased)};
      return {compute, parts, k};
    }
    ActivationBuffer Rows(const Compute& compute) const {
      ActivationBuffer a(compute.path(), rows, k);
      SetActivations(compute.path(), x, a.Rows(rows));
      return a;
    }
  };
  Layer RandomLayer(int64_t rows, int64_t n, int64_t k) {
    return {rows,
            n,
            k,
            Bf16Floats(rows * k),
            RandomBf16(rng_, n * k, 1.0f / std::sqrt(static_cast<float>(k))),
            RandomFloats(rng_, n)};
  }
  // Small whole numbers by whole 64ths, whose sums are the same in any order; any bias.
  Layer ExactLayer(int64_t rows, int64_t n, int64_t k) {
    Layer layer = RandomLayer(rows, n, k);
    for (float& x : layer.x) x = static_cast<float>(rng_() % 5) - 2;
    for (uint16_t& w : layer.w) w = F32ToBf16((static_cast<float>(rng_() % 129) - 64) / 64);
    return layer;
  }

  std::mt19937 rng_{1};
  ThreadPool threads_{2};
  const Compute cpu_{threads_, NumericPath::kF32};
  std::unique_ptr<Compute> cuda_;
};

}  // namespace kvcake
