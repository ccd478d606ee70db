#include "ops/elementwise.h"

#include <bit>
#include <cmath>

#include "ops/kernels.h"
#include "ops/paths_testing.h"

namespace kvcake {
namespace {

using ElementwiseTest = PathTest;

TEST_P(ElementwiseTest, RmsNormAgreesWithDoublePrecision) {
  ThreadPool pool(2);
  const Compute compute(pool, GetParam());
  std::mt19937 rng(1);
  for (int64_t n : {16, 48, 576, 2048}) {
    const int64_t rows = 19;
    auto x = RandomFloats(rng, rows * n, 3.0f);
    for (int64_t i = 0; i < n; ++i) x[5 * n + i] *= 1e-12f;  // eps decides
    const auto weight = RandomFloats(rng, n);
    ActivationBuffer out(GetParam(), rows, n);
    RmsNorm(compute, x.data(), {.weight = weight.data(), .eps = 1e-5f}, out.Rows(rows));
    for (int64_t r = 0; r < rows; ++r) {
      double squares = 0;
      for (int64_t i = 0; i < n; ++i) squares += static_cast<double>(x[r * n + i]) * x[r * n + i];
      for (int64_t i = 0; i < n; ++i) {
        const double want = x[r * n + i] / std::sqrt(squares / n + 1e-5) * weight[i];
        const double tolerance = Bf16Products(GetParam()) ? 0.004 : 1e-6;
        ASSERT_NEAR(ElementAt(GetParam(), out.Rows(rows), r, i), want,
                    tolerance * std::abs(want) + 1e-30);
      }
    }
  }
}

TEST_P(ElementwiseTest, LayerNormAgreesWithDoublePrecision) {
  ThreadPool pool(2);
  const Compute compute(pool, GetParam());
  std::mt19937 rng(11);
  for (int64_t n : {16, 48, 576, 4544}) {
    const int64_t rows = 19;
    auto x = RandomFloats(rng, rows * n, 3.0f);
    for (int64_t i = 0; i < n; ++i) x[4 * n + i] += 100.0f;  // a mean to take away
    for (int64_t i = 0; i < n; ++i) x[5 * n + i] = 7.0f + 1e-9f * x[5 * n + i];  // eps decides
    const auto weight = RandomFloats(rng, n), bias = RandomFloats(rng, n);
    ActivationBuffer out(GetParam(), rows, n);
    LayerNorm(compute, x.data(), {weight.data(), bias.data(), 1e-5f}, out.Rows(rows));
    for (int64_t r = 0; r < rows; ++r) {
      double mean = 0, squares = 0;
      for (int64_t i = 0; i < n; ++i) mean += x[r * n + i] / static_cast<double>(n);
      for (int64_t i = 0; i < n; ++i) squares += (x[r * n + i] - mean) * (x[r * n + i] - mean);
      for (int64_t i = 0; i < n; ++i) {
        const double want =
            (x[r * n + i] - mean) / std::sqrt(squares / n + 1e-5) * weight[i] + bias[i];
        const double tolerance = Bf16Products(GetParam()) ? 0.004 : 1e-5;
        ASSERT_NEAR(ElementAt(GetParam(), out.Rows(rows), r, i), want,
                    tolerance * std::abs(want) + 2e-4)
            << n << " row " << r;
      }
    }
  }
}

TEST_P(ElementwiseTest, NormHeadsLeavesValuesAlone) {
  ThreadPool pool(2);
  const Compute compute(pool, GetParam());
  std::mt19937 rng(12);
  for (int dim : {16, 80, 128}) {
    const QkvShape shape{.heads = 3, .kv_heads = 2, .head_dim = dim};
    const int64_t rows = 11, row_size = 7 * dim;
    const auto before = RandomFloats(rng, rows * row_size, 2.0f);
    const auto q = RandomFloats(rng, dim), k = RandomFloats(rng, dim);
    auto qkv = before;
    NormHeads(compute, shape, {.weight = q.data(), .eps = 1e-6f}, {.weight = k.data(), .eps = 0.5f},
              qkv);
    for (int64_t r = 0; r < rows; ++r) {
      for (int h = 0; h < 7; ++h) {
        const float* x = &before[r * row_size + h * dim];
        double squares = 0;
        for (int i = 0; i < dim; ++i) squares += static_cast<double>(x[i]) * x[i];
        for (int i = 0; i < dim; ++i) {
          const float got = qkv[r * row_size + h * dim + i];
          if (h >= 5) {
            ASSERT_EQ(got, x[i]);
            continue;
          }
          const double eps = h < 3 ? 1e-6 : 0.5;
          const double want = x[i] / std::sqrt(squares / dim + eps) * (h < 3 ? q : k)[i];
          ASSERT_NEAR(got, want, 2e-6 * std::abs(want) + 1e-30);
        }
      }
    }
  }
}

TEST_P(ElementwiseTest, RopeRotatesHalvesAndStoresKeysAndValues) {
  ThreadPool pool(2);
  const Compute compute(pool, GetParam());
  std::mt19937 rng(2);
  for (int dim : {16, 48, 64}) {
    const QkvShape shape{.heads = 3, .kv_heads = 1, .head_dim = dim};
    const int64_t rows = 10, row_size = 5 * dim, head_stride = 32 * dim;
    const std::vector<float> before = RandomFloats(rng, rows * row_size);
    std::vector<float> qkv = before, inv_freq, table(rows * dim);
    for (int i = 0; i < dim / 2; ++i) inv_freq.push_back(std::pow(10000.0f, -2.0f * i / dim));
    std::vector<int32_t> positions;
    std::vector<uint16_t> k(rows * dim, 0xabcd), v(rows * dim, 0xabcd);
    std::vector<KvSlot> slots;
    for (int64_t r = 0; r < rows; ++r) {
      positions.push_back(static_cast<int32_t>(r * 1237));
      slots.push_back(r == 4 ? KvSlot{} : KvSlot{&k[r * dim], &v[r * dim]});
    }
    const float scale = dim == 48 ? 1.25f : 1;
    RopeTable(compute, positions, inv_freq, scale, table.data());
    RopeAndStoreKv(compute, shape, qkv.data(), table.data(), slots, {.head = head_stride});
    for (int64_t r = 0; r < rows; ++r) {
      for (int h = 0; h < 4; ++h) {
        for (int i = 0; i < dim; ++i) {
          const float* x = &before[r * row_size + h * dim];
          const double angle = static_cast<float>(positions[r]) * inv_freq[i % (dim / 2)];
          const double other = i < dim / 2 ? -x[i + dim / 2] : x[i - dim / 2];
          const double want = scale * (x[i] * std::cos(angle) + other * std::sin(angle));
          if (h < 3) {
            ASSERT_NEAR(qkv[r * row_size + h * dim + i], want / std::sqrt(dim), 2e-6);
          } else if (r != 4) {
            ASSERT_NEAR(Bf16ToF32(k[r * dim + i]), want, 0.004 * std::abs(want) + 1e-5);
          }
        }
      }
      for (int i = 0; i < dim; ++i) {
        const uint16_t want = r == 4 ? 0xabcd : F32ToBf16(before[r * row_size + 4 * dim + i]);
        ASSERT_EQ(v[r * dim + i], want);
        if (r == 4) {
          ASSERT_EQ(k[r * dim + i], 0xabcd) << "the pages hold this row already";
        }
      }
    }
  }
}

TEST_P(ElementwiseTest, Bf16RoundsToNearestEven) {
  ThreadPool pool(1);
  const Compute compute(pool, GetParam());
  const std::vector<float> x = {
      1.0f, 1.00390625f, 1.01171875f, -1.00390625f, 1.0039063f, 3.4e38f, INFINITY, -INFINITY,
      NAN,  0.0f,        -0.0f,       65504.0f,     1e-30f,     -7.0f,   0.1f,     -0.3f};
  std::vector<uint16_t> out(16);
  compute.kernels().store_bf16(x.data(), 16, out.data());
  for (int i = 0; i < 16; ++i) {
    if (i == 8) {
      EXPECT_TRUE(std::isnan(Bf16ToF32(out[i])));
    } else {
      EXPECT_EQ(out[i], F32ToBf16(x[i])) << x[i];
    }
  }
  EXPECT_EQ(F32ToBf16(1.00390625f), 0x3f80);  // a tie
  EXPECT_EQ(F32ToBf16(1.01171875f), 0x3f82);  // a tie, upwards
  EXPECT_EQ(F32ToBf16(3.4e38f), 0x7f80);
}

// Those whose bits a carry would make a number, or infinity, among them.
TEST_P(ElementwiseTest, ANanStaysOneInBf16) {
  ThreadPool pool(1);
  const Compute compute(pool, GetParam());
  std::vector<float> x;
  for (const uint32_t bits : {0x7f800001u, 0x7f807fffu, 0x7fc00000u, 0x7fffffffu}) {
    for (const uint32_t sign : {0u, 0x80000000u}) x.push_back(std::bit_cast<float>(bits | sign));
  }
  x.resize(16, NAN);
  std::vector<uint16_t> out(16);
  compute.kernels().store_bf16(x.data(), 16, out.data());
  for (int i = 0; i < 16; ++i) {
    EXPECT_TRUE(std::isnan(Bf16ToF32(out[i]))) << i;
    EXPECT_TRUE(std::isnan(Bf16ToF32(F32ToBf16(x[i])))) << i;
  }
}

KVCAKE_EVERY_PATH(ElementwiseTest);

TEST(F16Test, EveryValueWidens) {
  EXPECT_EQ(F16ToF32(0x3c00), 1.0f);
  EXPECT_EQ(F16ToF32(0xfbff), -65504.0f);
  EXPECT_EQ(F16ToF32(0x0001), 0x1p-24f);
  EXPECT_EQ(F16ToF32(0x83ff), -1023 * 0x1p-24f);
  EXPECT_EQ(F16ToF32(0x7c00), INFINITY);
  EXPECT_TRUE(std::isnan(F16ToF32(0x7e00)));
}

}  // namespace
}  // namespace kvcake
