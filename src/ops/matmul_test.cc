#include "ops/matmul.h"

#include <cmath>
#include <cstring>

#include "ops/kernels.h"
#include "ops/paths_testing.h"

namespace kvcake {
namespace {

class MatMulTest : public PathTest {
 protected:
  std::vector<float> Multiply(const Compute& compute, const std::vector<float>& x, int64_t rows,
                              const PackedMatrix& w) {
    ActivationBuffer buffer(GetParam(), rows, w.k());
    SetActivations(GetParam(), x, buffer.Rows(rows));
    std::vector<float> out(rows * w.n(), NAN);
    MatMul(compute, buffer.Rows(rows), w, out.data(), w.n());
    return out;
  }
};

constexpr WeightFormat kFormats[] = {WeightFormat::kBf16, WeightFormat::kInt8};

// The double-precision dot product, and the sum of its magnitudes for a tolerance.
std::pair<double, double> Dot(NumericPath path, const float* a, const uint16_t* w, int64_t k) {
  double sum = 0, magnitude = 0;
  for (int64_t i = 0; i < k; ++i) {
    const double x = Bf16Products(path) ? Bf16ToF32(F32ToBf16(a[i])) : a[i];
    sum += x * Bf16ToF32(w[i]);
    magnitude += std::abs(x * Bf16ToF32(w[i]));
  }
  return {sum, magnitude};
}

TEST_P(MatMulTest, AgreesWithDoublePrecision) {
  ThreadPool pool(2);
  const Compute compute(pool, GetParam());
  std::mt19937 rng(1);
  struct Shape {
    int64_t m, n, k;
  };
  for (const auto& [m, n, k] :
       {Shape{1, 1, 16}, Shape{1, 32, 16}, Shape{2, 33, 48}, Shape{3, 200, 64}, Shape{5, 17, 576},
        Shape{12, 64, 128}, Shape{13, 95, 144}, Shape{100, 130, 64}, Shape{515, 31, 32},
        Shape{9, 40, 4096 + 16}, Shape{1, 260, 2 * 4096}}) {
    const auto x = RandomFloats(rng, m * k);
    const auto w = RandomBf16(rng, n * k);
    const WeightRows rows{w.data(), WeightType::kBf16, n};
    const auto out = Multiply(compute, x, m, PackedMatrix(compute, std::span(&rows, 1), k));
    for (int64_t r = 0; r < m; ++r) {
      for (int64_t c = 0; c < n; ++c) {
        const auto [want, magnitude] = Dot(GetParam(), &x[r * k], &w[c * k], k);
        ASSERT_NEAR(out[r * n + c], want, 1e-5 * magnitude) << m << "x" << n << "x" << k;
      }
    }
  }
}

// Random shapes, into rows that lie apart: what is between them is left alone.
TEST_P(MatMulTest, RandomShapesAndStrides) {
  ThreadPool pool(3);
  const Compute compute(pool, GetParam());
  std::mt19937 rng(21);
  for (int round = 0; round < 60; ++round) {
    const int64_t m = 1 + rng() % (round % 6 == 0 ? 700 : 30), n = 1 + rng() % 200;
    const int64_t k = 16 * (1 + rng() % 40), stride = n + rng() % 9;
    const float size = std::pow(10.0f, static_cast<float>(rng() % 9) - 4.0f);
    const auto x = RandomFloats(rng, m * k, size);
    const auto w = RandomBf16(rng, n * k);
    const WeightRows rows{w.data(), WeightType::kBf16, n};
    const PackedMatrix packed(compute, std::span(&rows, 1), k);
    ActivationBuffer buffer(GetParam(), m, k);
    SetActivations(GetParam(), x, buffer.Rows(m));
    std::vector<float> out(m * stride, 7.0f), sum(m * stride, 1.0f);
    MatMul(compute, buffer.Rows(m), packed, out.data(), stride);
    MatMulAdd(compute, buffer.Rows(m), packed, sum.data(), stride);
    for (int64_t i = 0; i < m * stride; ++i) {
      const int64_t r = i / stride, c = i % stride;
      if (c >= n) {
        ASSERT_EQ(out[i], 7.0f);
        ASSERT_EQ(sum[i], 1.0f);
        continue;
      }
      ASSERT_EQ(sum[i], 1.0f + out[i]);
      if (r % 5 != 0) continue;
      const auto [want, magnitude] = Dot(GetParam(), &x[r * k], &w[c * k], k);
      ASSERT_NEAR(out[i], want, 1e-5 * magnitude) << m << "x" << n << "x" << k;
    }
  }
}

// The promise of the header: the bits of a row are the same alone and among others, for any number
// of threads and any neighbours along n.
TEST_P(MatMulTest, RowsAreIndependentToTheBit) {
  std::mt19937 rng(2);
  for (int64_t k : {64, 576, 2048 + 32, 8192, 8192 + 4096 + 16}) {
    const int64_t n = 288, rows = 150;
    const auto x = RandomFloats(rng, rows * k);
    const auto w = RandomBf16(rng, n * k);
    ThreadPool one(1);
    const Compute alone(one, GetParam());
    const WeightRows part{w.data(), WeightType::kBf16, n};
    for (WeightFormat format : kFormats) {
      const auto want =
          Multiply(alone, x, rows, PackedMatrix(alone, std::span(&part, 1), k, format));
      for (int threads : {1, 2, 3}) {
        ThreadPool pool(threads);
        const Compute compute(pool, GetParam());
        const PackedMatrix packed(compute, std::span(&part, 1), k, format);
        for (int64_t m : {1, 2, 3, 4, 7, 12, 13, 30, 150}) {
          const int64_t first = rng() % (rows - m + 1);
          const std::vector<float> slice(x.begin() + first * k, x.begin() + (first + m) * k);
          const auto out = Multiply(compute, slice, m, packed);
          ASSERT_EQ(std::memcmp(out.data(), &want[first * n], out.size() * sizeof(float)), 0)
              << WeightFormatName(format) << ", " << m << " rows, k " << k << ", threads "
              << threads;
        }
      }
    }
  }
}

// Also what the products make of them: many rows by few panels are shared out by rows, too.
TEST_P(MatMulTest, ActivatedRowsAreIndependentToTheBit) {
  ThreadPool pool(3);
  const Compute compute(pool, GetParam());
  std::mt19937 rng(22);
  const int64_t rows = 300, some = 60, k = 32, n = 32;
  const auto w = RandomBf16(rng, n * k), up = RandomBf16(rng, n * k);
  const WeightRows gate{w.data(), WeightType::kBf16, n}, other{up.data(), WeightType::kBf16, n};
  const PackedMatrix plain(compute, std::span(&gate, 1), k);
  const PackedMatrix gate_up = PackedMatrix::GateUp(compute, gate, other, k);
  const auto x = RandomFloats(rng, rows * k);
  const auto products = [&](int64_t first, int64_t count) {
    ActivationBuffer in(GetParam(), count, k), gelu(GetParam(), count, n),
        swiglu(GetParam(), count, n);
    SetActivations(GetParam(), {x.begin() + first * k, x.begin() + (first + count) * k},
                   in.Rows(count));
    MatMulGelu(compute, in.Rows(count), plain, gelu.Rows(count));
    MatMulSwiGlu(compute, in.Rows(count), gate_up, swiglu.Rows(count));
    return std::pair(RowsOf(GetParam(), gelu.Rows(count)), RowsOf(GetParam(), swiglu.Rows(count)));
  };
  std::pair<std::vector<float>, std::vector<float>> want;
  for (int64_t first = 0; first < rows; first += some) {
    const auto [gelu, swiglu] = products(first, some);
    want.first.insert(want.first.end(), gelu.begin(), gelu.end());
    want.second.insert(want.second.end(), swiglu.begin(), swiglu.end());
  }
  EXPECT_TRUE(products(0, rows) == want);
}

TEST_P(MatMulTest, PartsAreConcatenatedAndConverted) {
  ThreadPool pool(2);
  const Compute compute(pool, GetParam());
  std::mt19937 rng(3);
  const int64_t k = 32;
  const auto f32 = RandomFloats(rng, 5 * k);
  const auto bf16 = RandomBf16(rng, 30 * k);
  const std::vector<uint16_t> f16(2 * k, 0xc100);  // -2.5
  const std::vector<WeightRows> parts = {{f32.data(), WeightType::kF32, 5},
                                         {bf16.data(), WeightType::kBf16, 30},
                                         {f16.data(), WeightType::kF16, 2}};
  const PackedMatrix w(compute, parts, k);
  ASSERT_EQ(w.n(), 37);
  std::vector<float> row(k);
  for (int64_t n = 0; n < 37; ++n) {
    w.CopyRow(n, row.data());
    for (int64_t i = 0; i < k; ++i) {
      const float want = n < 5    ? Bf16ToF32(F32ToBf16(f32[n * k + i]))
                         : n < 35 ? Bf16ToF32(bf16[(n - 5) * k + i])
                                  : -2.5f;
      ASSERT_EQ(row[i], want) << n << " " << i;
    }
  }
}

TEST_P(MatMulTest, AddAndSwiGluFollowTheProduct) {
  ThreadPool pool(2);
  const Compute compute(pool, GetParam());
  std::mt19937 rng(4);
  const int64_t m = 29, k = 64, inner = 80;
  const auto x = RandomFloats(rng, m * k);
  const auto gate = RandomBf16(rng, inner * k), up = RandomBf16(rng, inner * k);
  const WeightRows g{gate.data(), WeightType::kBf16, inner};
  const WeightRows u{up.data(), WeightType::kBf16, inner};
  const auto a = Multiply(compute, x, m, PackedMatrix(compute, std::span(&g, 1), k));
  const auto b = Multiply(compute, x, m, PackedMatrix(compute, std::span(&u, 1), k));

  ActivationBuffer in(GetParam(), m, k), out(GetParam(), m, inner);
  SetActivations(GetParam(), x, in.Rows(m));
  auto sum = a;
  MatMulAdd(compute, in.Rows(m), PackedMatrix(compute, std::span(&u, 1), k), sum.data(), inner);
  MatMulSwiGlu(compute, in.Rows(m), PackedMatrix::GateUp(compute, g, u, k), out.Rows(m));
  const double tolerance = Bf16Products(GetParam()) ? 0.004 : 1e-6;
  for (int64_t i = 0; i < m * inner; ++i) {
    ASSERT_EQ(sum[i], a[i] + b[i]);
    const double want = a[i] / (1 + std::exp(-static_cast<double>(a[i]))) * b[i];
    ASSERT_NEAR(ElementAt(GetParam(), out.Rows(m), i / inner, i % inner), want,
                tolerance * std::abs(want) + 1e-30);
  }
}

// Every product adds the bias of its matrix; GELU is that of the error function.
TEST_P(MatMulTest, BiasAndGeluFollowTheProduct) {
  ThreadPool pool(2);
  const Compute compute(pool, GetParam());
  std::mt19937 rng(14);
  const bool bf16 = Bf16Products(GetParam());
  for (int64_t n : {16, 48, 96, 208}) {
    const int64_t k = 64, first = n / 4;
    const auto w = RandomBf16(rng, n * k, 0.2f);
    const auto bias = RandomFloats(rng, n);
    const std::vector<WeightRows> parts = {
        {w.data(), WeightType::kBf16, first, bias.data()},
        {w.data() + first * k, WeightType::kBf16, n - first, bias.data() + first}};
    const PackedMatrix biased(compute, parts, k);
    const WeightRows whole{w.data(), WeightType::kBf16, n};
    const PackedMatrix plain(compute, std::span(&whole, 1), k);
    for (int64_t rows : {1, 3, 20}) {
      const auto x = RandomFloats(rng, rows * k);
      // Beside the rows' ends there is what is left alone.
      const int64_t beside = 64, wide = n + beside;
      ActivationBuffer a(GetParam(), rows, k), gelu(GetParam(), rows, wide);
      SetActivations(GetParam(), x, a.Rows(rows));
      SetActivations(GetParam(), std::vector<float>(rows * wide, 1.0f), gelu.Rows(rows));
      Activations out = gelu.Rows(rows);
      out.k = n;
      std::vector<float> product(rows * n), with_bias(rows * n), sum(rows * n, 1.0f);
      MatMul(compute, a.Rows(rows), plain, product.data(), n);
      MatMul(compute, a.Rows(rows), biased, with_bias.data(), n);
      MatMulAdd(compute, a.Rows(rows), biased, sum.data(), n);
      MatMulGelu(compute, a.Rows(rows), biased, out);
      for (int64_t i = 0; i < rows * n; ++i) {
        ASSERT_EQ(with_bias[i], product[i] + bias[i % n]);
        ASSERT_EQ(sum[i], 1.0f + with_bias[i]);
        const double y = with_bias[i], want = 0.5 * y * (1 + std::erf(y / std::sqrt(2.0)));
        ASSERT_NEAR(ElementAt(GetParam(), out, i / n, i % n), want,
                    (bf16 ? 0.004 : 1e-6) * std::abs(want) + 2e-6);
      }
      for (int64_t i = 0; i < rows * beside; ++i) {
        ASSERT_EQ(ElementAt(GetParam(), gelu.Rows(rows), i / beside, n + i % beside), 1.0f);
      }
    }
    if (n % 32 != 0) continue;
    const int64_t half = n / 2, rows = 5;
    const WeightRows gate{w.data(), WeightType::kBf16, half, bias.data()};
    const WeightRows up{w.data() + half * k, WeightType::kBf16, half, bias.data() + half};
    const PackedMatrix gate_up = PackedMatrix::GateUp(compute, gate, up, k);
    const auto x = RandomFloats(rng, rows * k);
    ActivationBuffer a(GetParam(), rows, k), out(GetParam(), rows, half);
    SetActivations(GetParam(), x, a.Rows(rows));
    std::vector<float> product(rows * n);
    MatMul(compute, a.Rows(rows), biased, product.data(), n);
    MatMulSwiGlu(compute, a.Rows(rows), gate_up, out.Rows(rows));
    for (int64_t i = 0; i < rows * half; ++i) {
      const double g = product[i / half * n + i % half],
                   u = product[i / half * n + half + i % half];
      const double want = g / (1 + std::exp(-g)) * u;
      ASSERT_NEAR(ElementAt(GetParam(), out.Rows(rows), i / half, i % half), want,
                  (bf16 ? 0.004 : 2e-6) * std::abs(want) + 1e-6);
    }
  }
}

TEST_P(MatMulTest, GeluOfExtremes) {
  ThreadPool pool(1);
  const Compute compute(pool, GetParam());
  std::vector<float> x = {-1e10f, -1e30f, -100.0f, -5.7f, -1e-20f, 0.0f, 6.0f, 1e30f, NAN};
  x.resize(16);
  std::vector<float> out(16);
  compute.kernels().gelu(x.data(), 16, 1, 16, reinterpret_cast<std::byte*>(out.data()), 16);
  const auto at = [&](int i) {
    if (!Bf16Products(GetParam())) return out[i];
    return Bf16ToF32(reinterpret_cast<const uint16_t*>(out.data())[i]);
  };
  for (int i : {0, 1, 2, 3, 4, 5}) EXPECT_NEAR(at(i), 0, 2e-6) << x[i];
  EXPECT_NEAR(at(6), 6.0f, 1e-5);
  EXPECT_NEAR(at(7) / 1e30f, 1, 0.004);
  EXPECT_TRUE(std::isnan(at(8)));
}

TEST_P(MatMulTest, ExtremeValuesStayInTheirRow) {
  ThreadPool pool(2);
  const Compute compute(pool, GetParam());
  std::mt19937 rng(5);
  const int64_t m = 14, k = 32, n = 40;
  const auto usual = RandomFloats(rng, m * k);
  auto x = usual;
  x[3 * k] = NAN;
  x[7 * k + 5] = INFINITY;
  x[9 * k + 1] = 3e38f;
  const auto w = RandomBf16(rng, n * k);
  const WeightRows rows{w.data(), WeightType::kBf16, n};
  for (WeightFormat format : kFormats) {
    const PackedMatrix packed(compute, std::span(&rows, 1), k, format);
    const auto want = Multiply(compute, usual, m, packed);
    const auto out = Multiply(compute, x, m, packed);
    for (int64_t i = 0; i < m * n; ++i) {
      if (i / n == 3) {
        ASSERT_TRUE(std::isnan(out[i]));
      } else if (i / n == 7) {
        ASSERT_FALSE(std::isfinite(out[i]));
      } else if (i / n != 9) {
        ASSERT_EQ(out[i], want[i]);
      }
    }
  }
}

// Scratch and rows that a large product has left reach no small one, nor the reverse.
TEST_P(MatMulTest, UsedScratchAndRowsGiveTheBitsOfFreshOnes) {
  ThreadPool pool(2);
  const Compute used(pool, GetParam());
  std::mt19937 rng(9);
  const int64_t n = 96;
  for (const WeightFormat format : kFormats) {
    for (const int64_t k : {16, 576, 64}) {
      const auto w = RandomBf16(rng, n * k);
      const WeightRows rows{w.data(), WeightType::kBf16, n};
      const PackedMatrix packed(used, std::span(&rows, 1), k, format);
      const WeightRows half{w.data(), WeightType::kBf16, n / 2};
      const WeightRows other{w.data() + n / 2 * k, WeightType::kBf16, n / 2};
      const PackedMatrix gate_up = PackedMatrix::GateUp(used, half, other, k, format);
      const ActivationBuffer in(GetParam(), 300, k), out(GetParam(), 300, n / 2);
      for (const int64_t m : {300, 1, 13, 2, 300, 96, 1}) {
        const auto x = RandomFloats(rng, m * k, m == 13 ? 100.0f : 1.0f);
        const auto products = [&](const Compute& compute, const ActivationBuffer& a,
                                  const ActivationBuffer& gated) {
          SetActivations(GetParam(), x, a.Rows(m));
          std::vector<float> all(m * n, NAN);
          MatMul(compute, a.Rows(m), packed, all.data(), n);
          MatMulAdd(compute, a.Rows(m), packed, all.data(), n);
          MatMulSwiGlu(compute, a.Rows(m), gate_up, gated.Rows(m));
          const auto swiglu = RowsOf(GetParam(), gated.Rows(m));
          all.insert(all.end(), swiglu.begin(), swiglu.end());
          return all;
        };
        const auto want = products(Compute(pool, GetParam()), ActivationBuffer(GetParam(), m, k),
                                   ActivationBuffer(GetParam(), m, n / 2));
        const auto got = products(used, in, out);
        ASSERT_EQ(std::memcmp(got.data(), want.data(), want.size() * sizeof(float)), 0)
            << m << " rows of " << k << ", " << WeightFormatName(format);
      }
    }
  }
}

KVCAKE_EVERY_PATH(MatMulTest);

using SwiGluTest = PathTest;

// silu of large magnitudes neither overflows nor turns into a NaN.
TEST_P(SwiGluTest, OfExtremeGates) {
  ThreadPool pool(1);
  const Compute compute(pool, GetParam());
  const int64_t k = 16, inner = 16;
  std::vector<uint16_t> gate(inner * k), up(inner * k);
  const std::vector<float> gates = {0, -1, 1, -20, 20, -86, -87.5, -100, 100, 1e4, -1e4, 1e30};
  for (size_t i = 0; i < gates.size(); ++i) gate[i * k] = F32ToBf16(gates[i]);
  for (int64_t i = 0; i < inner; ++i) up[i * k] = F32ToBf16(1.0f);
  std::vector<float> x(k);
  x[0] = 1.0f;
  ActivationBuffer in(GetParam(), 1, k), out(GetParam(), 1, inner);
  SetActivations(GetParam(), x, in.Rows(1));
  const PackedMatrix w = PackedMatrix::GateUp(compute, {gate.data(), WeightType::kBf16, inner},
                                              {up.data(), WeightType::kBf16, inner}, k);
  MatMulSwiGlu(compute, in.Rows(1), w, out.Rows(1));
  const auto got = RowsOf(GetParam(), out.Rows(1));
  for (size_t i = 0; i < gates.size(); ++i) {
    const double g = Bf16ToF32(F32ToBf16(gates[i])), want = g / (1 + std::exp(-g));
    EXPECT_NEAR(got[i], want, 0.004 * std::abs(want) + 1e-33) << gates[i];
  }
}

KVCAKE_EVERY_PATH_AND_CUDA(SwiGluTest);

}  // namespace
}  // namespace kvcake
