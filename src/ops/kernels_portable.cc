// Plain C++ with vectors of four floats (SSE2 on x86, NEON on arm64) and no fused multiply-add, so
// that every machine computes the same bits.
#include <array>
#include <bit>
#include <cstring>
#include <type_traits>
#include <utility>

#include "ops/attention.h"
#include "base/bf16.h"
#include "ops/kernels.h"

#define KVCAKE_ISA
#define KVCAKE_INLINE __attribute__((always_inline)) inline

namespace kvcake {
namespace {

typedef float V __attribute__((vector_size(16)));
typedef uint32_t VInt __attribute__((vector_size(16)));
using Element = float;
using Quantized = int16_t;
using Int8Weight = int32_t;
constexpr int kLanes = 4;
constexpr int kUnit = 1;
constexpr int kInt8Unit = 1;
constexpr int kTileRows = 6;
constexpr int kWidePanels = 1;
constexpr int kAheadRows = 2;
constexpr int kStepBytes = 16;  // of a panel; int8 takes half of it

KVCAKE_INLINE V Load(const float* x) {
  V v;
  std::memcpy(&v, x, sizeof(v));
  return v;
}
KVCAKE_INLINE void Store(float* to, V x) { std::memcpy(to, &x, sizeof(x)); }
KVCAKE_INLINE V Splat(float x) { return V{x, x, x, x}; }
KVCAKE_INLINE V MulAdd(V a, V b, V c) { return a * b + c; }
KVCAKE_INLINE V Max(V a, V b) { return a > b ? a : b; }
KVCAKE_INLINE V Abs(V x) { return Max(x, -x); }
KVCAKE_INLINE float ReduceMax(V x) {
  const float a = x[0] > x[2] ? x[0] : x[2], b = x[1] > x[3] ? x[1] : x[3];
  return a > b ? a : b;
}
KVCAKE_INLINE float ReduceAdd(V x) { return (x[0] + x[2]) + (x[1] + x[3]); }
KVCAKE_INLINE void StoreBf16(uint16_t* to, V x) {
  for (int i = 0; i < kLanes; ++i) to[i] = F32ToBf16(x[i]);
}
KVCAKE_INLINE void StoreElement(Element* to, V x) { Store(to, x); }
KVCAKE_INLINE V LoadElement(const Element* x) { return Load(x); }
// The low halves of `shifted` hold the values.
KVCAKE_INLINE void StoreQuantized(Quantized* to, V shifted) {
  const VInt bits = std::bit_cast<VInt>(shifted);
  for (int i = 0; i < kLanes; ++i) to[i] = static_cast<int16_t>(bits[i]);
}
KVCAKE_INLINE V LoadInt32(const int32_t* x, int32_t minus) {
  V v;
  for (int i = 0; i < kLanes; ++i) v[i] = static_cast<float>(x[i] - minus);
  return v;
}
// p * 2^n, where the low bits of `shifted` hold n.
KVCAKE_INLINE V ShiftExponent(V p, V shifted) {
  return std::bit_cast<V>(std::bit_cast<VInt>(p) + (std::bit_cast<VInt>(shifted) << 23));
}

// b: [steps][kLanes * 2].
template <int kRows, bool kAdd, bool kAhead>
KVCAKE_ISA void Tile(const Element* a, int64_t a_stride, const Element* b, int64_t steps, float* c,
                     int64_t c_stride, const std::byte* ahead) {
  V sum[kRows][2];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < 2; ++v) {
      sum[r][v] = kAdd ? Load(c + r * c_stride + v * kLanes) : Splat(0.0f);
    }
  }
  for (int64_t step = 0; step < steps; ++step) {
    const V b0 = Load(b + step * 2 * kLanes), b1 = Load(b + step * 2 * kLanes + kLanes);
    if constexpr (kAhead) Fetch<kStepBytes>(ahead + step * kStepBytes);
    for (int r = 0; r < kRows; ++r) {
      const V row = Splat(a[r * a_stride + step]);
      sum[r][0] = MulAdd(row, b0, sum[r][0]);
      sum[r][1] = MulAdd(row, b1, sum[r][1]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < 2; ++v) Store(c + r * c_stride + v * kLanes, sum[r][v]);
  }
}

// b: [steps][kLanes * 2].
template <int kRows, bool kAdd, bool kAhead>
KVCAKE_ISA void Int8Tile(const Quantized* a, int64_t a_stride, const Int8Weight* b, int64_t steps,
                         int32_t* c, int64_t c_stride, const std::byte* ahead) {
  constexpr int kColumns = 2 * kLanes;
  int32_t sum[kRows][kColumns];
  for (int r = 0; r < kRows; ++r) {
    for (int i = 0; i < kColumns; ++i) sum[r][i] = kAdd ? c[r * c_stride + i] : 0;
  }
  for (int64_t step = 0; step < steps; ++step) {
    for (int r = 0; r < kRows; ++r) {
      for (int i = 0; i < kColumns; ++i) {
        sum[r][i] += a[r * a_stride + step] * b[step * kColumns + i];
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int i = 0; i < kColumns; ++i) c[r * c_stride + i] = sum[r][i];
  }
}

constexpr int kWidth = 2 * kLanes;
constexpr int64_t kBlock = kAttentionBlock;
constexpr int64_t kDepth = kUnit;

void PackKeys(const KvView& kv, int64_t block, int64_t keys, int64_t head_dim, Element* packed,
              const uint16_t*) {
  const uint16_t* from = nullptr;
  for (int64_t key = 0; key < keys; ++key, from += head_dim) {
    if (key % 16 == 0) from = kv.Keys(block + key);
    Element* to = packed + key / kWidth * kWidth * head_dim + key % kWidth;
    for (int64_t d = 0; d < head_dim; ++d) to[d * kWidth] = Bf16ToF32(from[d]);
  }
}

void PackValues(const KvView& kv, int64_t block, int64_t keys, int64_t head_dim, Element* packed,
                const uint16_t*) {
  const uint16_t* from = nullptr;
  for (int64_t key = 0; key < keys; ++key, from += head_dim) {
    if (key % 16 == 0) from = kv.Values(block + key);
    for (int64_t d = 0; d < head_dim; ++d) {
      packed[(d / kWidth * kBlock + key) * kWidth + d % kWidth] = Bf16ToF32(from[d]);
    }
  }
}

// A step is one key: nothing to mask.
void MaskTail(const Element*, int64_t, Element*) {}

constexpr std::array<FewRows<Element>, 0> kFew;

void Multiply(const MultiplyArgs& m);
void MultiplyInt8(const MultiplyInt8Args& m);

#include "ops/kernels_tiles_inl.h"
#include "ops/kernels_inl.h"
#include "ops/kernels_few_inl.h"

void Multiply(const MultiplyArgs& m) {
  constexpr int64_t kBlockK = 2048;  // 64 KiB of widened weights
  static_assert(kBlockK * kPanel * sizeof(float) <= kMultiplyScratchBytes);
  const auto* a = reinterpret_cast<const float*>(m.a);
  auto* wide = reinterpret_cast<float*>(m.scratch);  // [k][kPanel]
  for (int64_t k0 = 0; k0 < m.k; k0 += kBlockK) {
    const int64_t n = m.k - k0 < kBlockK ? m.k - k0 : kBlockK;
    const uint16_t* b = m.b + k0 * kPanel;
    for (int64_t k = 0; k < n; k += 2) {
      for (int64_t i = 0; i < kPanel; ++i) {
        wide[k * kPanel + i] = Bf16ToF32(b[k * kPanel + 2 * i]);
        wide[(k + 1) * kPanel + i] = Bf16ToF32(b[k * kPanel + 2 * i + 1]);
      }
    }
    Products::MultiplyRows(a + k0, m.a_stride, m.rows, wide, n, m.c, kPanel, k0 > 0,
                           Ahead(m, k0 + kBlockK));
  }
}

void MultiplyInt8(const MultiplyInt8Args& m) {
  constexpr int64_t kBlockK = 2048;  // 64 KiB of widened weights
  static_assert(kBlockK * kPanel * sizeof(Int8Weight) <= kMultiplyScratchBytes);
  const auto* a = reinterpret_cast<const Quantized*>(m.a);
  auto* wide = reinterpret_cast<Int8Weight*>(m.scratch);  // [k][kPanel]
  for (int64_t k = 0; k < m.k; k += kBlockK) {
    const int64_t n = m.k - k < kBlockK ? m.k - k : kBlockK;
    for (int64_t i = 0; i < n * kPanel; ++i) wide[i] = m.b[k * kPanel + i];
    Products::MultiplyRows(a + k, m.a_stride / sizeof(Quantized), m.rows, wide, n,
                           reinterpret_cast<int32_t*>(m.c), kPanel, k > 0,
                           Ahead(m, k + kBlockK));
  }
  ScaleBack(m);
}

}  // namespace

const Kernels* PortableKernels() { return &kKernels; }

}  // namespace kvcake
