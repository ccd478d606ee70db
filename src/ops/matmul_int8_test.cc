#include <cmath>
#include <cstring>

#include "ops/kernels.h"
#include "ops/matmul.h"
#include "ops/paths_testing.h"

namespace kvcake {
namespace {

class Int8Test : public PathTest {
 protected:
  struct Quantized {
    std::vector<int> values;
    float scale = 0, sum = 0;
  };

  // Quantises a row whose values bf16 can hold.
  Quantized Quantize(const std::vector<float>& x) {
    ThreadPool pool(1);
    const Compute compute(pool, GetParam());
    const int64_t n = static_cast<int64_t>(x.size());
    ActivationBuffer buffer(GetParam(), 1, n);
    const Activations a = buffer.Rows(1);
    SetActivations(GetParam(), x, a);
    Quantized q;
    compute.kernels().quantize_row(a.data, n, a.quantized, &q.scale, &q.sum);
    for (int64_t i = 0; i < n; ++i) {
      q.values.push_back(QuantizedBytes(GetParam()) == 1
                             ? reinterpret_cast<const int8_t*>(a.quantized)[i]
                             : reinterpret_cast<const int16_t*>(a.quantized)[i]);
    }
    return q;
  }
};

std::vector<float> AsBf16(std::vector<float> x) {
  for (float& value : x) value = Bf16ToF32(F32ToBf16(value));
  return x;
}

TEST_P(Int8Test, RowsAreRoundedToTheirLargestMagnitude) {
  std::mt19937 rng(1);
  for (int64_t n : {16, 48, 576, 8192}) {
    for (float size : {1e-20f, 0.01f, 1.0f, 1e30f}) {
      const auto x = AsBf16(RandomFloats(rng, n, size));
      const Quantized q = Quantize(x);
      float largest = 0;
      for (float value : x) largest = std::max(largest, std::abs(value));
      EXPECT_EQ(q.scale, largest / 127.0f);
      int sum = 0;
      for (int64_t i = 0; i < n; ++i) {
        ASSERT_NEAR(q.values[i], x[i] / q.scale, 0.5001) << i << " of " << n;
        ASSERT_LE(std::abs(q.values[i]), 127);
        sum += q.values[i];
      }
      EXPECT_EQ(q.sum, sum);
    }
  }
}

TEST_P(Int8Test, RowsOfExtremes) {
  const Quantized zero = Quantize(std::vector<float>(32));
  EXPECT_EQ(zero.scale, 0);
  EXPECT_EQ(zero.values, std::vector<int>(32));
  std::vector<float> x(32, 1e-38f);
  EXPECT_EQ(Quantize(x).values, std::vector<int>(32)) << "nothing to tell from zero";
  x[7] = 2.0f;
  EXPECT_EQ(Quantize(x).values[7], 127);
  EXPECT_EQ(Quantize(x).values[8], 0);
  for (float bad : {INFINITY, -INFINITY, NAN}) {
    x[20] = bad;
    const Quantized q = Quantize(x);
    EXPECT_TRUE(std::isnan(q.scale));
    EXPECT_EQ(q.sum, 0);
    EXPECT_EQ(q.values, std::vector<int>(32));
  }
}

// The largest sums that there can be: every product is 127 * 127, of one sign.
TEST_P(Int8Test, TheDeepestProductDoesNotOverflow) {
  ThreadPool pool(2);
  const Compute compute(pool, GetParam());
  const int64_t k = kInt8DepthMax, n = 5;
  std::vector<float> w(n * k, 1.0f);
  std::fill_n(w.begin() + k, k, -1.0f);
  const WeightRows rows{w.data(), WeightType::kF32, n};
  const PackedMatrix packed(compute, std::span(&rows, 1), k, WeightFormat::kInt8);
  for (int64_t m : {1, 2, 14}) {
    for (float sign : {1.0f, -1.0f}) {
      ActivationBuffer a(GetParam(), m, k);
      SetActivations(GetParam(), std::vector<float>(m * k, sign), a.Rows(m));
      std::vector<float> out(m * n);
      MatMul(compute, a.Rows(m), packed, out.data(), n);
      for (int64_t i = 0; i < m * n; ++i) {
        const double want = (i % n == 1 ? -sign : sign) * static_cast<double>(k);
        ASSERT_NEAR(out[i], want, 1e-5 * k);
      }
    }
  }
}

// Rows longer than any path multiplies at once: each part of a row meets its own weights.
TEST_P(Int8Test, DeepProductsAgreeWithDoublePrecision) {
  ThreadPool pool(2);
  const Compute compute(pool, GetParam());
  std::mt19937 rng(5);
  const int64_t k = 2 * 8192 + 4112, n = 5;
  const auto w = RandomBf16(rng, n * k);
  const WeightRows rows{w.data(), WeightType::kBf16, n};
  const PackedMatrix packed(compute, std::span(&rows, 1), k, WeightFormat::kInt8);
  std::vector<float> row(k);
  for (const int64_t m : {1, 3}) {
    const auto x = AsBf16(RandomFloats(rng, m * k));
    ActivationBuffer a(GetParam(), m, k);
    SetActivations(GetParam(), x, a.Rows(m));
    std::vector<float> out(m * n);
    MatMul(compute, a.Rows(m), packed, out.data(), n);
    for (int64_t r = 0; r < m; ++r) {
      const Quantized q = Quantize({x.begin() + r * k, x.begin() + (r + 1) * k});
      for (int64_t c = 0; c < n; ++c) {
        packed.CopyRow(c, row.data());
        double want = 0, magnitude = 0;
        for (int64_t i = 0; i < k; ++i) {
          const double product = static_cast<double>(q.values[i]) * q.scale * row[i];
          want += product;
          magnitude += std::abs(product);
        }
        ASSERT_NEAR(out[r * n + c], want, 2e-6 * magnitude) << r << " " << c;
      }
    }
  }
}

TEST_P(Int8Test, WeightsAreRoundedRowByRow) {
  ThreadPool pool(2);
  const Compute compute(pool, GetParam());
  std::mt19937 rng(2);
  const int64_t k = 64, n = 41;
  auto w = RandomFloats(rng, n * k);
  for (int64_t i = 0; i < k; ++i) w[3 * k + i] *= 1000, w[4 * k + i] = 0;
  w[5 * k + 9] = INFINITY;
  const WeightRows rows{w.data(), WeightType::kF32, n};
  const PackedMatrix packed(compute, std::span(&rows, 1), k, WeightFormat::kInt8);
  std::vector<float> row(k);
  for (int64_t r = 0; r < n; ++r) {
    packed.CopyRow(r, row.data());
    float largest = 0;
    for (int64_t i = 0; i < k; ++i) largest = std::max(largest, std::abs(w[r * k + i]));
    for (int64_t i = 0; i < k; ++i) {
      if (r == 5) {
        ASSERT_TRUE(std::isnan(row[i]));
      } else {
        ASSERT_NEAR(row[i], w[r * k + i], largest / 254 * 1.0001f) << r << " " << i;
      }
    }
  }
}

// Numbers that every type holds, as each of them.
TEST_P(Int8Test, WeightsOfEveryTypeAreRoundedAlike) {
  ThreadPool pool(2);
  const Compute compute(pool, GetParam());
  std::mt19937 rng(4);
  const int64_t k = 48, n = 6;
  std::vector<float> f32(n * k);
  std::vector<uint16_t> bf16, f16;
  for (float& value : f32) {
    const int eighth = static_cast<int>(rng() % 16);  // of one, from 1 to just below 3
    value = 1.0f + static_cast<float>(eighth) / 8;
    bf16.push_back(F32ToBf16(value));
    const int mantissa = eighth < 8 ? eighth * 128 : (eighth - 8) * 64;
    f16.push_back(static_cast<uint16_t>((eighth < 8 ? 15 : 16) << 10 | mantissa));
    ASSERT_EQ(F16ToF32(f16.back()), value);
  }
  const std::vector<WeightRows> parts = {{f32.data(), WeightType::kF32, n},
                                         {bf16.data(), WeightType::kBf16, n},
                                         {f16.data(), WeightType::kF16, n}};
  const PackedMatrix packed(compute, parts, k, WeightFormat::kInt8);
  std::vector<float> want(k), row(k);
  for (int64_t r = 0; r < n; ++r) {
    packed.CopyRow(r, want.data());
    for (int64_t i = 0; i < k; ++i) ASSERT_NEAR(want[i], f32[r * k + i], 3.0f / 254);
    for (const int64_t same : {n + r, 2 * n + r}) {
      packed.CopyRow(same, row.data());
      ASSERT_EQ(row, want) << same;
    }
  }
}

// Integers are exact: from the same rows every path makes the same bits. Random shapes, against
// the sum over what the rows and the weights were rounded to.
TEST_P(Int8Test, EveryPathMakesTheSameBitsOfRandomShapes) {
  std::mt19937 rng(3);
  for (int shape = 0; shape < 40; ++shape) {
    const int64_t m = 1 + rng() % (shape % 4 == 0 ? 200 : 5), n = 1 + rng() % 300;
    const int64_t k = 16 * (1 + rng() % (shape % 5 == 0 ? 600 : 40));
    const auto x =
        AsBf16(RandomFloats(rng, m * k, std::pow(10.0f, static_cast<int>(rng() % 7) - 3.0f)));
    const auto w = RandomBf16(rng, n * k), other = RandomBf16(rng, 7 * k);
    const auto bias = RandomFloats(rng, n + 7);
    const bool biased = rng() % 2;
    const std::vector<WeightRows> parts = {
        {w.data(), WeightType::kBf16, n, biased ? bias.data() : nullptr},
        {other.data(), WeightType::kBf16, 7, biased ? bias.data() + n : nullptr}};
    const auto multiply = [&](NumericPath path, int threads) {
      ThreadPool pool(threads);
      const Compute compute(pool, path);
      const PackedMatrix packed(compute, parts, k, WeightFormat::kInt8);
      ActivationBuffer a(path, m, k);
      SetActivations(path, x, a.Rows(m));
      std::vector<float> out(m * (n + 11), NAN);
      MatMul(compute, a.Rows(m), packed, out.data(), n + 11);
      return out;
    };
    const auto got = multiply(GetParam(), 2);
    ThreadPool pool(1);
    const Compute compute(pool, GetParam());
    const PackedMatrix packed(compute, parts, k, WeightFormat::kInt8);
    std::vector<float> row(k);
    for (int64_t c = 0; c < n + 7; ++c) {
      packed.CopyRow(c, row.data());
      for (int64_t r = 0; r < m; r += 1 + m / 3) {
        const Quantized q = Quantize({x.begin() + r * k, x.begin() + (r + 1) * k});
        double want = biased ? bias[c] : 0, magnitude = 1e-30 + std::abs(want);
        for (int64_t i = 0; i < k; ++i) {
          want += static_cast<double>(q.values[i]) * q.scale * row[i];
          magnitude += std::abs(static_cast<double>(q.values[i]) * q.scale * row[i]);
        }
        ASSERT_NEAR(got[r * (n + 11) + c], want, 2e-6 * magnitude);
      }
    }
    for (int64_t r = 0; r < m; ++r) {
      for (int64_t c = n + 7; c < n + 11; ++c) ASSERT_TRUE(std::isnan(got[r * (n + 11) + c]));
    }
    for (NumericPath path : kCpuPaths) {
      if (!PathAvailable(path)) continue;
      const auto out = multiply(path, 1);
      ASSERT_EQ(std::memcmp(out.data(), got.data(), got.size() * sizeof(float)), 0)
          << NumericPathName(path) << " " << m << "x" << n << "x" << k;
    }
  }
}

KVCAKE_EVERY_PATH(Int8Test);

}  // namespace
}  // namespace kvcake
