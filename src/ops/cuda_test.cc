// The operations on a CUDA device against the portable ones of the CPU, on the same values. Skipped
// where there is no device.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "ops/attention.h"
#include "ops/cuda_testing.h"
#include "ops/elementwise.h"
#include "ops/matmul.h"

namespace kvcake {
namespace {

constexpr double kBf16Half = 0.004;  // of a bf16's distance to the next, relative to it

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
    RopeTable(cpu_, positions, inv_freq, 1.25f, table.data());
    NormHeads(cpu_, shape, {.weight = q.data(), .eps = 1e-6f}, {.weight = k.data(), .eps = 0.5f},
              qkv);
    RopeAndStoreKv(cpu_, shape, qkv.data(), table.data(), slots,
                   {.layer = layer, .head = head / 2});
    const Buffer device_freq = cuda_->Put(inv_freq), dq = cuda_->Put(q), dk = cuda_->Put(k);
    RopeTable(*cuda_, {device_positions.as<int32_t>(), positions.size()},
              {device_freq.as<float>(), inv_freq.size()}, 1.25f, device_table.as<float>());
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

constexpr ProductShape kShapes[] = {{1, 16, 16},    {3, 208, 64},   {2, 32, 14336},
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

// A product is told from others of its matrix's size: by its rows' strides, its bias, whether it is
// added, and whether GELU follows it. Sums of whole 64ths are the same in any order.
TEST_F(CudaTest, ProductsOfOneSizeAreToldApart) {
  const int64_t rows = 9, n = 32, k = 48;
  Layer layer = ExactLayer(rows, n, k), other = layer;
  for (float& bias : layer.bias) bias = static_cast<float>(rng_() % 9);
  for (float& bias : other.bias) bias = static_cast<float>(rng_() % 9) + 9;
  std::vector<PackedMatrix> cpu_w, cuda_w;
  for (const auto& [of, biased] :
       {std::pair(&layer, true), {&layer, false}, {&other, true}, {&layer, true}}) {
    cpu_w.push_back(of->Pack(cpu_, biased));
    cuda_w.push_back(of->Pack(*cuda_, biased));
  }
  // The same rows, further apart.
  const ActivationBuffer room(cpu_.path(), 2 * rows, k), device_room(kCuda, 2 * rows, k);
  Activations apart = room.Rows(rows), device_apart = device_room.Rows(rows);
  apart.stride *= 2;
  device_apart.stride *= 2;
  SetActivations(cpu_.path(), layer.x, apart);
  SetActivations(kCuda, layer.x, device_apart);
  const ActivationBuffer a = layer.Rows(cpu_), device_a = layer.Rows(*cuda_), gelu(kCuda, rows, n);
  MatMulGelu(*cuda_, device_a.Rows(rows), cuda_w[1], gelu.Rows(rows));
  for (size_t w = 0; w < cpu_w.size(); ++w) {
    for (const bool far : {false, true}) {
      for (const int64_t stride : {n, n + 16}) {
        for (const auto& multiply : {&MatMul, &MatMulAdd}) {
          std::vector<float> want(rows * stride, 1.0f);
          const Buffer got = Put(want);
          multiply(cpu_, far ? apart : a.Rows(rows), cpu_w[w], want.data(), stride);
          multiply(*cuda_, far ? device_apart : device_a.Rows(rows), cuda_w[w], got.as<float>(),
                   stride);
          ASSERT_EQ(Get(got.as<float>(), want.size()), want)
              << "matrix " << w << (far ? ", rows apart" : "") << ", stride " << stride
              << (multiply == &MatMulAdd ? ", added" : "");
        }
      }
    }
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

// The last rows of a product that the scratch does not hold at once are as they are alone: sums of
// whole 64ths are the same in any order. It holds 1,030 of them; those after 1,024 are aligned.
TEST_F(CudaTest, ActivationsOfMoreRowsThanTheScratchHolds) {
  const int64_t n = 130304, k = 16, rows = 1041, last = 33;
  static_assert(CudaDevice::kScratchBytes / (n * 2) == 1030);
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
