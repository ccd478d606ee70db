// The operations on a CUDA device against the portable ones of the CPU, on the same values. Skipped
// where there is no device.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "ops/attention.h"
#include "ops/cuda_kernels.h"
#include "ops/elementwise.h"
#include "ops/matmul.h"
#include "ops/paths_testing.h"

namespace kvcake {
namespace {

constexpr NumericPath kCuda = NumericPath::kBf16Tensor;
constexpr double kBf16Half = 0.004;  // of a bf16's distance to the next, relative to it

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

// `slack`: more that each may be off by, or nothing.
void ExpectNear(const std::vector<float>& got, const std::vector<float>& want, double relative,
                double absolute, const std::vector<double>& slack = {}) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    const double more = slack.empty() ? 0 : slack[i];
    ASSERT_NEAR(got[i], want[i], relative * std::abs(want[i]) + absolute + more) << "at " << i;
  }
}

TEST_F(CudaTest, NormsAreTheCpus) {
  for (const int64_t k : {16, 48, 576, 4096, 4544, 16384}) {
    const int64_t rows = 19;
    const auto x = RandomFloats(rng_, rows * k, 3.0f), weight = RandomFloats(rng_, k);
    const auto bias = RandomFloats(rng_, k);
    const Buffer on_device = Put(x);
    const Buffer weights = cuda_->Put(weight), biases = cuda_->Put(bias);
    const ActivationBuffer want(cpu_.path(), rows, k), got(kCuda, rows, k);
    RmsNorm(cpu_, x.data(), {.weight = weight.data(), .eps = 1e-5f}, want.Rows(rows));
    RmsNorm(*cuda_, on_device.as<float>(), {.weight = weights.as<float>(), .eps = 1e-5f},
            got.Rows(rows));
    ExpectNear(RowsOf(kCuda, got.Rows(rows)), RowsOf(cpu_.path(), want.Rows(rows)), kBf16Half,
               1e-6);
    LayerNorm(cpu_, x.data(), {weight.data(), bias.data(), 1e-5f}, want.Rows(rows));
    LayerNorm(*cuda_, on_device.as<float>(), {weights.as<float>(), biases.as<float>(), 1e-5f},
              got.Rows(rows));
    ExpectNear(RowsOf(kCuda, got.Rows(rows)), RowsOf(cpu_.path(), want.Rows(rows)), kBf16Half,
               1e-5);
  }
}

TEST_F(CudaTest, HeadsAreNormalizedRotatedAndStored) {
  for (const auto& [heads, dim] : {std::pair(3, 16), {3, 80}, {29, 128}}) {
    const QkvShape shape{.heads = heads, .kv_heads = 2, .head_dim = dim};
    const int64_t rows = 10, row_size = (heads + 4) * dim, head = 32 * dim, layer = 2 * head;
    auto qkv = RandomFloats(rng_, rows * row_size);
    const auto q = RandomFloats(rng_, dim), k = RandomFloats(rng_, dim);
    std::vector<float> inv_freq, table(rows * dim);
    for (int i = 0; i < dim / 2; ++i) inv_freq.push_back(std::pow(10000.0f, -2.0f * i / dim));
    std::vector<int32_t> positions;
    for (int i = 0; i < rows; ++i) positions.push_back(i * 1237);
    // One layer's K and V of every row, in a page of its own; row 4 goes nowhere.
    std::vector<uint16_t> pages(rows * 2 * layer, 0xabcd);
    const Buffer device_pages = Put(pages), device_qkv = Put(qkv),
                 device_positions = Put(positions);
    const Buffer device_table(table.size() * sizeof(float), Memory::kDevice);
    const auto slots_of = [&](uint16_t* at) {
      std::vector<KvSlot> slots;
      for (int64_t r = 0; r < rows; ++r, at += 2 * layer) slots.push_back({at, at + layer / 2});
      slots[4] = {};
      return slots;
    };
    const auto slots = slots_of(pages.data());
    const Buffer device_slots = Put(slots_of(device_pages.as<uint16_t>()));
    RopeTable(cpu_, positions, inv_freq, table.data());
    NormHeads(cpu_, shape, {.weight = q.data(), .eps = 1e-6f}, {.weight = k.data(), .eps = 0.5f},
              qkv);
    RopeAndStoreKv(cpu_, shape, qkv.data(), table.data(), slots,
                   {.layer = layer, .head = head / 2});
    const Buffer device_freq = cuda_->Put(inv_freq), dq = cuda_->Put(q), dk = cuda_->Put(k);
    RopeTable(*cuda_, {device_positions.as<int32_t>(), positions.size()},
              {device_freq.as<float>(), inv_freq.size()}, device_table.as<float>());
    NormHeads(*cuda_, shape, {.weight = dq.as<float>(), .eps = 1e-6f},
              {.weight = dk.as<float>(), .eps = 0.5f}, {device_qkv.as<float>(), qkv.size()});
    RopeAndStoreKv(*cuda_, shape, device_qkv.as<float>(), device_table.as<float>(),
                   {device_slots.as<KvSlot>(), slots.size()}, {.layer = layer, .head = head / 2});
    ExpectNear(Get(device_table.as<float>(), table.size()), table, 0, 2e-6);
    const auto got = Get(device_qkv.as<float>(), qkv.size());
    for (int64_t i = 0; i < rows * row_size; ++i) {
      if (i % row_size < heads * dim) {
        ASSERT_NEAR(got[i], qkv[i], 1e-4) << "query " << i;
      }
    }
    const auto stored = Get(device_pages.as<uint16_t>(), pages.size());
    for (size_t i = 0; i < pages.size(); ++i) {
      if (pages[i] == 0xabcd) {
        ASSERT_EQ(stored[i], 0xabcd) << "nothing belongs to " << i;
      } else {
        const float want = Bf16ToF32(pages[i]);
        ASSERT_NEAR(Bf16ToF32(stored[i]), want, 2 * kBf16Half * std::abs(want) + 1e-4) << i;
      }
    }
  }
}

TEST_F(CudaTest, RowsAreEmbeddedAndTaken) {
  for (const int64_t k : {80, 2064}) {
    const int64_t vocab = 37;
    const auto bits = RandomBf16(rng_, vocab * k);
    const WeightRows rows{bits.data(), WeightType::kBf16, vocab};
    const PackedMatrix table(*cuda_, std::span(&rows, 1), k);
    const std::vector<int32_t> tokens = {36, 0, 5, 5, 11};
    const Buffer device_tokens = Put(tokens),
                 out(tokens.size() * k * sizeof(float), Memory::kDevice);
    const std::span<const int32_t> on_device(device_tokens.as<int32_t>(), tokens.size());
    Embed(*cuda_, table, on_device, out.as<float>());
    const auto got = Get(out.as<float>(), tokens.size() * k);
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_EQ(got[i], Bf16ToF32(bits[tokens[i / k] * k + i % k]));
    }
    const auto x = RandomFloats(rng_, 40 * k);
    const Buffer from = Put(x);
    TakeRows(*cuda_, from.as<float>(), on_device, k, out.as<float>());
    const auto taken = Get(out.as<float>(), tokens.size() * k);
    for (size_t i = 0; i < taken.size(); ++i) ASSERT_EQ(taken[i], x[tokens[i / k] * k + i % k]);
  }
}

struct Shape {
  int64_t rows, n, k;
};
constexpr Shape kShapes[] = {{1, 16, 16},    {3, 208, 64},   {2, 32, 14336},
                             {9, 96, 1040},  {29, 96, 576},  {32, 64, 528},
                             {33, 16, 2064}, {64, 320, 528}, {515, 48, 4096}};

TEST_F(CudaTest, ProductsAreTheCpus) {
  for (const auto& [rows, n, k] : kShapes) {
    SCOPED_TRACE(testing::Message() << rows << "x" << n << "x" << k);
    const Layer layer = RandomLayer(rows, n, k);
    const bool biased = rows % 4 != 0;
    const PackedMatrix cpu_w = layer.Pack(cpu_, biased), cuda_w = layer.Pack(*cuda_, biased);
    const ActivationBuffer a = layer.Rows(cpu_), device_a = layer.Rows(*cuda_);
    const int64_t stride = n + 4;
    std::vector<float> want(rows * stride, 1.0f);
    const Buffer got = Put(want);
    MatMul(cpu_, a.Rows(rows), cpu_w, want.data(), stride);
    MatMul(*cuda_, device_a.Rows(rows), cuda_w, got.as<float>(), stride);
    ExpectNear(Get(got.as<float>(), want.size()), want, 1e-4, 1e-4);
    MatMulAdd(cpu_, a.Rows(rows), cpu_w, want.data(), stride);
    MatMulAdd(*cuda_, device_a.Rows(rows), cuda_w, got.as<float>(), stride);
    ExpectNear(Get(got.as<float>(), want.size()), want, 2e-4, 2e-4);
  }
}

// What enters the activations is off by more than what leaves them: sums are rounded to bf16 before
// the bias is added, by up to 2^-8 of them, and steps of SiLU and GELU are up to 1.13 times as long
// as those they follow.
TEST_F(CudaTest, ActivationsOfProductsAreTheCpus) {
  constexpr double kSumHalf = 1.0 / 256, kSlope = 1.13;
  for (const auto& [rows, n, k] : kShapes) {
    SCOPED_TRACE(testing::Message() << rows << "x" << n << "x" << k);
    const Layer layer = RandomLayer(rows, n, k);
    const ActivationBuffer a = layer.Rows(cpu_), device_a = layer.Rows(*cuda_);
    std::vector<float> sums(rows * n);
    MatMul(cpu_, a.Rows(rows), layer.Pack(cpu_, /*biased=*/false), sums.data(), n);
    const ActivationBuffer gelu(cpu_.path(), rows, n), device_gelu(kCuda, rows, n);
    MatMulGelu(cpu_, a.Rows(rows), layer.Pack(cpu_), gelu.Rows(rows));
    MatMulGelu(*cuda_, device_a.Rows(rows), layer.Pack(*cuda_), device_gelu.Rows(rows));
    std::vector<double> slack;
    for (const float sum : sums) slack.push_back(kSlope * kSumHalf * std::abs(sum));
    ExpectNear(RowsOf(kCuda, device_gelu.Rows(rows)), RowsOf(cpu_.path(), gelu.Rows(rows)),
               kBf16Half, 1e-4, slack);
    if (n % 32 != 0) continue;
    const int64_t half = n / 2;
    const ActivationBuffer out(cpu_.path(), rows, half), device_out(kCuda, rows, half);
    MatMulSwiGlu(cpu_, a.Rows(rows), PackedMatrix::GateUp(cpu_, layer.Half(0), layer.Half(1), k),
                 out.Rows(rows));
    MatMulSwiGlu(*cuda_, device_a.Rows(rows),
                 PackedMatrix::GateUp(*cuda_, layer.Half(0), layer.Half(1), k),
                 device_out.Rows(rows));
    slack.clear();
    for (int64_t i = 0; i < rows * half; ++i) {
      const int64_t at = i / half * n + i % half;
      const double gate = sums[at] + layer.bias[i % half];
      const double up = sums[at + half] + layer.bias[half + i % half];
      const double silu = gate / (1 + std::exp(-gate));
      const double gate_off = kSumHalf * std::abs(sums[at]);
      const double up_off = kSumHalf * std::abs(sums[at + half]);
      slack.push_back(kSlope * gate_off * (std::abs(up) + up_off) + std::abs(silu) * up_off);
    }
    ExpectNear(RowsOf(kCuda, device_out.Rows(rows)), RowsOf(cpu_.path(), out.Rows(rows)), kBf16Half,
               2e-4, slack);
  }
}

// Few rows, whose products have a kernel of their own where the weights are enough for all of a
// device's multiprocessors: to the bit, as sums of whole 64ths are the same in any order, and
// twice, as it leaves nothing behind. Tiles of rows that are there in part, blocks of threads with
// several tiles, k that ends within a stage, and more stages than a ring holds.
TEST_F(CudaTest, ProductsOfFewRowsAreExact) {
  for (const Shape& shape : {Shape{1, 2112, 16},
                             {2, 2113, 48},
                             {3, 2131, 112},
                             {4, 4322, 144},
                             {1, 2136, 1072},
                             {4, 2098, 2064},
                             {1, 4300, 4096},
                             {2, 2104, 4112},
                             {5, 2130, 112},
                             {3, 35, 112},
                             {1, 18, 14336}}) {
    const int64_t rows = shape.rows, n = shape.n, k = shape.k;
    SCOPED_TRACE(testing::Message() << rows << "x" << n << "x" << k);
    Layer layer = ExactLayer(rows, n, k);
    for (float& bias : layer.bias) bias = (static_cast<float>(rng_() % 1025) - 512) / 64;
    const auto pack = [&](const Compute& compute) {
      const WeightRows all{layer.w.data(), WeightType::kBf16, n,
                           rows % 4 == 0 ? nullptr : layer.bias.data()};
      return PackedMatrix(compute, std::span(&all, 1), k);
    };
    const PackedMatrix cpu_w = pack(cpu_);
    const PackedMatrix cuda_w = pack(*cuda_);
    const ActivationBuffer a = layer.Rows(cpu_), device_a = layer.Rows(*cuda_);
    const int64_t stride = n + 3;
    std::vector<float> want(rows * stride, 1.0f);
    const Buffer got = Put(want);
    const auto expect_same = [&] {
      const auto values = Get(got.as<float>(), want.size());
      for (size_t i = 0; i < want.size(); ++i) ASSERT_EQ(values[i], want[i]) << "at " << i;
    };
    MatMul(cpu_, a.Rows(rows), cpu_w, want.data(), stride);
    for (int run = 0; run < 2; ++run) {
      MatMul(*cuda_, device_a.Rows(rows), cuda_w, got.as<float>(), stride);
      expect_same();
    }
    for (int run = 0; run < 2; ++run) {
      MatMulAdd(cpu_, a.Rows(rows), cpu_w, want.data(), stride);
      MatMulAdd(*cuda_, device_a.Rows(rows), cuda_w, got.as<float>(), stride);
      expect_same();
    }
  }
}

// Rows that products normalize themselves are those of RmsNorm before them, to the bit: sums of
// small squares are the same in any order.
TEST_F(CudaTest, ProductsNormalizeRowsAsRmsNormDoes) {
  for (const Shape& shape : {Shape{1, 48, 64},
                             {1, 2208, 1072},
                             {2, 2112, 4096},
                             {1, 2112, 8192},
                             {2, 2112, 8208},
                             {3, 2112, 64},
                             {40, 32, 64}}) {
    const int64_t rows = shape.rows, n = shape.n, k = shape.k;
    SCOPED_TRACE(testing::Message() << rows << "x" << n << "x" << k);
    const Layer layer = RandomLayer(rows, n, k);
    const PackedMatrix w = layer.Pack(*cuda_);
    std::vector<float> x(rows * k), weight(k);
    for (float& value : x) value = static_cast<float>(rng_() % 9) - 4;
    for (float& value : weight) value = static_cast<float>(rng_() % 33) / 16;
    const Buffer device_x = Put(x), device_weight = Put(weight);
    const NormWeights norm{.weight = device_weight.as<float>(), .eps = 1e-5f};
    const ActivationBuffer room(kCuda, rows, k);
    const auto results = [&](const Activations& a) {
      const Buffer out = Put(std::vector<float>(rows * n, 1.0f));
      const ActivationBuffer gelu(kCuda, rows, n);
      MatMulAdd(*cuda_, a, w, out.as<float>(), n);
      MatMulGelu(*cuda_, a, w, gelu.Rows(rows));
      return std::pair(Get(out.as<float>(), rows * n), RowsOf(kCuda, gelu.Rows(rows)));
    };
    RmsNorm(*cuda_, device_x.as<float>(), norm, room.Rows(rows));
    const auto want = results(room.Rows(rows));
    SetActivations(kCuda, std::vector<float>(rows * k, NAN), room.Rows(rows));
    Activations lazy = LazyRmsNorm(*cuda_, device_x.as<float>(), norm, room.Rows(rows));
    const bool early = CudaDevice::Get().value()->capability() >= 90;
    EXPECT_EQ(lazy.unnormalized != nullptr, early && rows <= 2 && k <= 8192);
    EXPECT_EQ(results(lazy), want);
    // What was left to a product that cannot is done before it.
    lazy.unnormalized = device_x.as<float>();
    lazy.norm_weight = norm.weight;
    lazy.norm_eps = norm.eps;
    EXPECT_EQ(results(lazy), want);
  }
}

// Heads whose queries are rotated and whose keys and values are stored on their way out of a
// product are those of RopeAndStoreKv behind it, to the bit: the sums are the same ones.
TEST_F(CudaTest, ProductsRotateAndStoreHeadsAsRopeAndStoreKvDoes) {
  for (const auto& [shape, k] : {std::pair(QkvShape{133, 2, 16}, 48),
                                 {{23, 2, 80}, 1072},
                                 {{13, 3, 128}, 112},
                                 {{3, 1, 16}, 32}}) {
    const auto [heads, kv_heads, dim] = shape;
    const int64_t n = (heads + 2 * kv_heads) * dim, head = 32 * dim, layer = kv_heads * head;
    for (const int64_t rows : {1, 3, 4, 5}) {
      SCOPED_TRACE(testing::Message() << rows << " rows of " << heads << " heads of " << dim);
      const Layer of = RandomLayer(rows, n, k);
      const PackedMatrix w = of.Pack(*cuda_, rows % 2 != 0);
      const ActivationBuffer a = of.Rows(*cuda_);
      const Buffer table = Put(RandomFloats(rng_, rows * dim));
      const auto results = [&](bool fused) {
        // Two layers of K and V of every row, in a page of its own; row 1 goes nowhere.
        const Buffer pages = Put(std::vector<uint16_t>(rows * 4 * layer, 0xabcd));
        const Buffer qkv = Put(std::vector<float>(rows * n, 7.0f));
        std::vector<KvSlot> slots;
        for (int64_t r = 0; r < rows; ++r) {
          uint16_t* const page = pages.as<uint16_t>() + r * 4 * layer + 5 * dim;
          slots.push_back(r == 1 ? KvSlot{} : KvSlot{page, page + layer});
        }
        const Buffer device_slots = Put(slots);
        const std::span<const KvSlot> all{device_slots.as<KvSlot>(), slots.size()};
        const KvStride stride{.layer = 2 * layer, .head = head};
        if (fused) {
          MatMulQkv(*cuda_, a.Rows(rows), w, shape, qkv.as<float>(), table.as<float>(), all,
                    stride);
        } else {
          MatMul(*cuda_, a.Rows(rows), w, qkv.as<float>(), n);
          RopeAndStoreKv(*cuda_, shape, qkv.as<float>(), table.as<float>(), all, stride);
        }
        std::vector<float> queries;
        const auto got = Get(qkv.as<float>(), rows * n);
        for (int64_t i = 0; i < rows * n; ++i) {
          if (i % n < heads * dim) queries.push_back(got[i]);
        }
        return std::pair(queries, Get(pages.as<uint16_t>(), rows * 4 * layer));
      };
      EXPECT_EQ(results(true), results(false));
    }
  }
}

// What a layer multiplies, twice over: each product's rows are results of others, each way that
// rows enter and results go is there, and stages, chunks of rows and tiles end unevenly.
TEST_F(CudaTest, JoinedProductsAreThoseOneByOne) {
  constexpr int64_t kHidden = 2128, kInner = 1072, kQkv = 4240;
  for (const int64_t rows : {1, 3}) {
    SCOPED_TRACE(rows);
    const Layer o = RandomLayer(rows, kHidden, 2064), up = RandomLayer(rows, 2 * kInner, kHidden),
                down = RandomLayer(rows, kHidden, kInner), qkv = RandomLayer(rows, kQkv, kHidden),
                wide = RandomLayer(rows, 2 * kHidden, kHidden),
                back = RandomLayer(rows, kHidden, 2 * kHidden);
    const PackedMatrix o_w = o.Pack(*cuda_), down_w = down.Pack(*cuda_, false),
                       qkv_w = qkv.Pack(*cuda_), wide_w = wide.Pack(*cuda_),
                       back_w = back.Pack(*cuda_),
                       up_w = PackedMatrix::GateUp(*cuda_, up.Half(0), up.Half(1), kHidden);
    const ActivationBuffer attended = o.Rows(*cuda_), normed(kCuda, rows, kHidden),
                           inner(kCuda, rows, kInner), gelu(kCuda, rows, 2 * kHidden);
    const Buffer weight = Put(RandomFloats(rng_, kHidden));
    const NormWeights norm{.weight = weight.as<float>(), .eps = 1e-5f};
    const std::vector<float> residual = RandomFloats(rng_, rows * kHidden);
    const auto results = [&](bool joined) {
      cuda::JoinProducts(*cuda_->cuda(), joined);
      const Buffer x = Put(residual), out = Put(std::vector<float>(rows * kQkv, NAN));
      std::vector<std::vector<float>> all;
      for (int layer = 0; layer < 2; ++layer) {
        const auto normalized = [&] {
          return LazyRmsNorm(*cuda_, x.as<float>(), norm, normed.Rows(rows));
        };
        MatMulAdd(*cuda_, attended.Rows(rows), o_w, x.as<float>(), kHidden);
        MatMulSwiGlu(*cuda_, normalized(), up_w, inner.Rows(rows));
        MatMulAdd(*cuda_, inner.Rows(rows), down_w, x.as<float>(), kHidden);
        MatMul(*cuda_, normalized(), qkv_w, out.as<float>(), kQkv);
        MatMulGelu(*cuda_, normalized(), wide_w, gelu.Rows(rows));
        all.push_back(Get(x.as<float>(), rows * kHidden));
        MatMulAdd(*cuda_, gelu.Rows(rows), back_w, x.as<float>(), kHidden);
        all.push_back(Get(out.as<float>(), rows * kQkv));
      }
      all.push_back(Get(x.as<float>(), rows * kHidden));
      cuda::JoinProducts(*cuda_->cuda(), false);
      return all;
    };
    const auto want = results(false);
    for (int run = 0; run < 2; ++run) EXPECT_EQ(results(true), want);
  }
}

// Few rows among many, which cuBLASLt multiplies: what is rounded to bf16 is told from what is not.
TEST_F(CudaTest, ActivationsOfFewRowsAreThoseOfMany) {
  constexpr int64_t kMany = 40;
  for (const auto& [n, k] : {std::pair(2112, 16), {4288, 80}, {2144, 1072}, {96, 4096}}) {
    Layer layer = ExactLayer(kMany, n, k);
    const ActivationBuffer a = layer.Rows(*cuda_);
    for (const bool biased : {true, false}) {
      const PackedMatrix gelu = layer.Pack(*cuda_, biased);
      const PackedMatrix gate_up = n % 32 != 0 ? PackedMatrix()
                                               : PackedMatrix::GateUp(*cuda_, layer.Half(0, biased),
                                                                      layer.Half(1, biased), k);
      for (const auto& [op, w] :
           {std::pair(&MatMulGelu, &gelu), std::pair(&MatMulSwiGlu, &gate_up)}) {
        const int64_t columns = w == &gelu ? n : n / 2;
        if (w->n() == 0) continue;
        const auto results = [&, op = op, w = w](int64_t rows) {
          const ActivationBuffer out(kCuda, kMany, columns);
          SetActivations(kCuda, std::vector<float>(kMany * columns, 7.0f), out.Rows(kMany));
          op(*cuda_, a.Rows(rows), *w, out.Rows(rows));
          return RowsOf(kCuda, out.Rows(kMany));
        };
        const auto all = results(kMany);
        for (const int64_t rows : {1, 2, 4, 5}) {
          SCOPED_TRACE(testing::Message() << rows << "x" << n << "x" << k);
          const auto some = results(rows);
          for (int64_t i = 0; i < kMany * columns; ++i) {
            ASSERT_EQ(some[i], i < rows * columns ? all[i] : 7.0f) << "at " << i;
          }
        }
      }
    }
  }
}

// The last rows of a product that the scratch does not hold at once are as they are alone: sums of
// whole 64ths are the same in any order.
TEST_F(CudaTest, ActivationsOfMoreRowsThanTheScratchHolds) {
  const int64_t n = 1 << 17, k = 16, rows = 1041, last = 33;
  static_assert(n * 2 * 1024 == CudaDevice::kScratchBytes);
  Layer layer = ExactLayer(rows, n, k);
  const PackedMatrix gelu = layer.Pack(*cuda_);
  const PackedMatrix gate_up = PackedMatrix::GateUp(*cuda_, layer.Half(0), layer.Half(1), k);
  const ActivationBuffer every_row = layer.Rows(*cuda_);
  layer.rows = last;
  layer.x.erase(layer.x.begin(), layer.x.end() - last * k);
  const ActivationBuffer last_rows = layer.Rows(*cuda_);
  for (const auto& [op, w] : {std::pair(&MatMulGelu, &gelu), std::pair(&MatMulSwiGlu, &gate_up)}) {
    const int64_t columns = w == &gelu ? n : n / 2;
    const ActivationBuffer all(kCuda, rows, columns), alone(kCuda, last, columns);
    op(*cuda_, every_row.Rows(rows), *w, all.Rows(rows));
    op(*cuda_, last_rows.Rows(last), *w, alone.Rows(last));
    Activations end = all.Rows(rows);
    end.data += (rows - last) * end.stride * ActivationBytes(kCuda);
    end.rows = last;
    EXPECT_TRUE(RowsOf(kCuda, end) == RowsOf(kCuda, alone.Rows(last)));
  }
}

}  // namespace
}  // namespace kvcake
