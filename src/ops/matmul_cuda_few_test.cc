// Products of few rows on a CUDA device, by themselves and joined.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <numeric>
#include <utility>

#include "ops/cuda_device.h"
#include "ops/cuda_kernels.h"
#include "ops/cuda_page_copier.h"
#include "ops/cuda_testing.h"
#include "ops/elementwise.h"
#include "ops/matmul.h"
#include "ops/sum_words.h"

namespace kvcake {
namespace {

// Few rows, whose products have a kernel of their own where the weights are enough for all of a
// device's multiprocessors: to the bit, as sums of whole 64ths are the same in any order, and
// twice, as it leaves nothing behind. Tiles of rows that are there in part, blocks of threads with
// several tiles, k that ends within a stage, and more stages than a ring holds.
TEST_F(CudaTest, ProductsOfFewRowsAreExact) {
  for (const ProductShape& shape : {ProductShape{1, 2112, 16},
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

// Shared memory has no room for four rows that are so long, and for weights besides.
TEST_F(CudaTest, ProductsOfFewVeryLongRowsAreExact) {
  const int64_t rows = 4, n = 2112, k = 28672;
  const std::vector<uint16_t> weights(n * k, F32ToBf16(1.0f / 64));
  const WeightRows all{weights.data(), WeightType::kBf16, n};
  const PackedMatrix w(*cuda_, std::span(&all, 1), k);
  std::vector<float> x(rows * k), want;
  for (float& value : x) value = static_cast<float>(rng_() % 5) - 2;
  for (int64_t row = 0; row < rows; ++row) {
    const auto first = x.begin() + row * k;
    want.insert(want.end(), n, std::accumulate(first, first + k, 0.0f) / 64);
  }
  const ActivationBuffer a(kCuda, rows, k);
  SetActivations(kCuda, x, a.Rows(rows));
  const Buffer got = Put(std::vector<float>(rows * n, 1.0f));
  MatMul(*cuda_, a.Rows(rows), w, got.as<float>(), n);
  EXPECT_EQ(Get(got.as<float>(), rows * n), want);
}

// Rows that products normalize themselves are those of RmsNorm before them, to the bit: sums of
// small squares are the same in any order.
TEST_F(CudaTest, ProductsNormalizeRowsAsRmsNormDoes) {
  for (const ProductShape& shape : {ProductShape{1, 48, 64},
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
  struct Case {
    QkvShape shape;
    int64_t k;
  };
  for (const Case& of_case :
       {Case{{133, 2, 16}, 48}, {{23, 2, 80}, 1072}, {{13, 3, 128}, 112}, {{3, 1, 16}, 32}}) {
    const QkvShape& shape = of_case.shape;
    const int64_t k = of_case.k, heads = shape.heads, kv_heads = shape.kv_heads,
                  dim = shape.head_dim;
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

TEST_F(CudaTest, WhatWasGatheredComesFirst) {
  struct Gathered : GatheredOperations {
    int enqueued = 0;
    void Enqueue() override { ++enqueued; }
  } gathered;
  CudaDevice& device = *cuda_->cuda();
  std::byte *const memory = device.Allocate(4096).value(),
                   *const freed = device.Allocate(1).value(),
                   *const host = device.AllocatePinned(4096).value();
  auto* const words = reinterpret_cast<uint64_t*>(memory);
  const std::function<void()> operations[] = {
      [&] { device.CopyToDevice(memory, host, 16); },
      [&] { device.CopyToHost(host, memory, 16); },
      [&] { device.Zero(memory, 16); },
      [&] { device.Upload(memory, host, 16); },
      [&] { device.Free(freed); },
      [&] { device.Wait(); },
      [&] { NewCudaPageCopier()->AfterOperations([] {}); },
      [&] {
        SumWords(*cuda_, {words, 16}, words + 16);
      },
  };
  for (const auto& operation : operations) {
    gathered.enqueued = 0;
    device.SetGathered(&gathered);
    operation();
    EXPECT_EQ(gathered.enqueued, 1);
  }
  device.Wait();
  device.FreePinned(host, 4096);
  device.Free(memory);
}

// What two layers multiply, in kernels of four products and of three: each product's rows are
// results of others, each way that rows enter and results go is there, and stages, chunks of rows
// and tiles end unevenly or evenly.
TEST_F(CudaTest, JoinedProductsAreThoseOneByOne) {
  constexpr int64_t kHidden = 2128, kAttended = 4096, kInner = 1072;
  constexpr QkvShape kShape{.heads = 129, .kv_heads = 2, .head_dim = 16};
  constexpr int64_t kQkv = 133 * 16, kPage = 2 * 2 * 16;
  for (const auto& [rows, join] :
       {std::pair(1, cuda::Join::kTogether), {1, cuda::Join::kEarly}, {3, cuda::Join::kTogether}}) {
    SCOPED_TRACE(rows);
    const Layer o = RandomLayer(rows, kHidden, kAttended),
                up = RandomLayer(rows, 2 * kInner, kHidden),
                down = RandomLayer(rows, kHidden, kInner), qkv = RandomLayer(rows, kQkv, kHidden),
                wide = RandomLayer(rows, 2 * kHidden, kHidden),
                back = RandomLayer(rows, kHidden, 2 * kHidden);
    const PackedMatrix o_w = o.Pack(*cuda_), down_w = down.Pack(*cuda_, false),
                       qkv_w = qkv.Pack(*cuda_), wide_w = wide.Pack(*cuda_),
                       back_w = back.Pack(*cuda_),
                       up_w = PackedMatrix::GateUp(*cuda_, up.Half(0), up.Half(1), kHidden);
    const ActivationBuffer attended = o.Rows(*cuda_), normed(kCuda, rows, kHidden),
                           inner(kCuda, rows, kInner), gelu(kCuda, rows, 2 * kHidden);
    const Buffer weight = Put(RandomFloats(rng_, kHidden)),
                 table = Put(RandomFloats(rng_, rows * 16));
    const NormWeights norm{.weight = weight.as<float>(), .eps = 1e-5f};
    const std::vector<float> residual = RandomFloats(rng_, rows * kHidden);
    CudaDevice& device = *cuda_->cuda();
    const auto results = [&, rows = rows](cuda::Join how) {
      cuda::JoinProducts(device, how);
      const Buffer x = Put(residual), out = Put(std::vector<float>(rows * kQkv, 7.0f)),
                   set = Put(std::vector<float>(rows * 2 * kHidden, 7.0f));
      const Buffer pages = Put(std::vector<uint16_t>(rows * kPage, 0xabcd));
      std::vector<KvSlot> slots;
      for (int row = 0; row < rows; ++row) {
        uint16_t* const page = pages.as<uint16_t>() + row * kPage;
        slots.push_back({page, page + kPage / 2});
      }
      const Buffer device_slots = Put(slots);
      std::vector<std::vector<float>> all;
      for (int layer = 0; layer < 2; ++layer) {
        const auto normalized = [&] {
          return LazyRmsNorm(*cuda_, x.as<float>(), norm, normed.Rows(rows));
        };
        MatMulAdd(*cuda_, attended.Rows(rows), o_w, x.as<float>(), kHidden);
        EXPECT_EQ(device.gathers(), how != cuda::Join::kNo && device.capability() >= 90 &&
                                        device.multiprocessors() <= kHidden / 16);
        MatMulSwiGlu(*cuda_, normalized(), up_w, inner.Rows(rows));
        MatMulAdd(*cuda_, inner.Rows(rows), down_w, x.as<float>(), kHidden);
        MatMulQkv(*cuda_, normalized(), qkv_w, kShape, out.as<float>(), table.as<float>(),
                  {device_slots.as<KvSlot>(), slots.size()}, {.head = 16});
        MatMulGelu(*cuda_, normalized(), wide_w, gelu.Rows(rows));
        MatMulAdd(*cuda_, gelu.Rows(rows), back_w, x.as<float>(), kHidden);
        MatMul(*cuda_, normalized(), wide_w, set.as<float>(), 2 * kHidden);
        all.push_back(Get(set.as<float>(), rows * 2 * kHidden));
        all.push_back(Get(out.as<float>(), rows * kQkv));
        all.emplace_back();
        for (const uint16_t bits : Get(pages.as<uint16_t>(), rows * kPage)) {
          all.back().push_back(Bf16ToF32(bits));
        }
      }
      all.push_back(Get(x.as<float>(), rows * kHidden));
      cuda::JoinProducts(device, cuda::Join::kNo);
      return all;
    };
    EXPECT_EQ(results(join), results(cuda::Join::kNo));
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

}  // namespace
}  // namespace kvcake
