// Path f32-fma: f32 arithmetic on weights that are widened on the fly, in vectors of eight, with
// fused multiply-adds in one order, so that every machine that has them computes the same bits
// (what is not a number aside: the bits of a NaN are the machine's own). Included once by each of
// kernels_{avx2,neon}.cc, inside their anonymous namespace, after they have defined what
// kernels_inl.h asks for and is not here, and
//   LoadBf16               kLanes bf16, widened
//   LoadPairs              kLanes pairs of bf16; First and Second of each, widened
//   Transpose(x, y)        8 x 8 floats
//   kInt8Unit              1 or 2
//   Ints                   kLanes sums; LoadInts, StoreInts
//   Widen(bytes)           kInt8Unit weights of each of kLanes columns, 16 bits each; LoadColumns,
//                          StoreColumns
//   SplatQuantized(a)      kInt8Unit values of a row, for every column
//   AddProducts(row, columns, sum)

using Element = float;
using Quantized = int16_t;
using Int8Weight = int16_t;
constexpr int kLanes = 8;
constexpr int kUnit = 1;
constexpr int64_t kBlock = kAttentionBlock;
constexpr int64_t kDepth = kUnit;
constexpr int kTileRows = 6;
constexpr int kFewRows = 4;
constexpr int kWidePanels = 2;
constexpr int kAheadRows = 2;  // a single row waits for memory alone, and it streams better unasked

KVCAKE_INLINE void StoreElement(Element* to, V x) { Store(to, x); }
KVCAKE_INLINE V LoadElement(const Element* x) { return Load(x); }

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
    if constexpr (kAhead) Fetch<4 * kLanes>(ahead + step * 4 * kLanes);  // bf16
    for (int r = 0; r < kRows; ++r) {
      const V row = Splat(a[r * a_stride + step]);
      sum[r][0] = MulAdd(row, b0, sum[r][0]);
      sum[r][1] = MulAdd(row, b1, sum[r][1]);
    }
  }
  // Not unrolled before registers are given out, this would have the sums in memory.
#pragma GCC unroll kTileRows
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < 2; ++v) Store(c + r * c_stride + v * kLanes, sum[r][v]);
  }
}

// b: [steps][kLanes * 2][kInt8Unit].
template <int kRows, bool kAdd, bool kAhead>
KVCAKE_ISA void Int8Tile(const Quantized* a, int64_t a_stride, const Int8Weight* b, int64_t steps,
                         int32_t* c, int64_t c_stride, const std::byte* ahead) {
  constexpr int kHalf = kLanes * kInt8Unit;
  Ints sum[kRows][2];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < 2; ++v) {
      sum[r][v] = kAdd ? LoadInts(c + r * c_stride + v * kLanes) : Ints{};
    }
  }
  for (int64_t step = 0; step < steps; ++step) {
    const auto b0 = LoadColumns(b + step * 2 * kHalf), b1 = LoadColumns(b + (step * 2 + 1) * kHalf);
    if constexpr (kAhead) Fetch<2 * kHalf>(ahead + step * 2 * kHalf);
    for (int r = 0; r < kRows; ++r) {
      const auto row = SplatQuantized(a + r * a_stride + step * kInt8Unit);
      sum[r][0] = AddProducts(row, b0, sum[r][0]);
      sum[r][1] = AddProducts(row, b1, sum[r][1]);
    }
  }
#pragma GCC unroll kTileRows
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < 2; ++v) StoreInts(c + r * c_stride + v * kLanes, sum[r][v]);
  }
}

// Keys beyond `keys` in their group of 8 are packed too: the page holds something there.
KVCAKE_ISA void PackKeys(const KvView& kv, int64_t block, int64_t keys, int64_t head_dim,
                         Element* packed, const uint16_t* next) {
  for (int64_t key = 0; key < keys; key += 8) {
    const uint16_t* from = kv.Keys(block + key);
    Element* to = packed + key / 16 * 16 * head_dim + key % 16;
    for (int64_t d = 0; d < head_dim; d += 8) {
      V rows[8], columns[8];
      for (int i = 0; i < 8; ++i) rows[i] = LoadBf16(from + i * head_dim + d);
      Fetch<128>(next + key * head_dim + 8 * d);
      Transpose(rows, columns);
      for (int i = 0; i < 8; ++i) Store(to + (d + i) * 16, columns[i]);
    }
  }
}

template <int kRows>
KVCAKE_ISA void Score(const Element* q, const uint16_t* keys, const uint16_t* next,
                      int64_t head_dim, float* scores, int64_t stride) {
  V sum[kRows];
  for (V& row : sum) row = Splat(0.0f);
  for (int64_t d = 0; d < head_dim; d += 8) {
    V rows[8], columns[8];
    for (int i = 0; i < 8; ++i) rows[i] = LoadBf16(keys + i * head_dim + d);
    Fetch<128>(next + 8 * d);
    Transpose(rows, columns);
    for (int i = 0; i < 8; ++i) {
      for (int r = 0; r < kRows; ++r) {
        sum[r] = MulAdd(Splat(q[r * head_dim + d + i]), columns[i], sum[r]);
      }
    }
  }
  for (int r = 0; r < kRows; ++r) Store(scores + r * stride, sum[r]);
}

template <int kRows>
KVCAKE_ISA void AddValues(const Element* weights, int64_t weights_stride, const uint16_t* values,
                          const uint16_t* next, int64_t keys, int64_t head_dim, int64_t,
                          float* sums, int64_t stride) {
  V sum[kRows][2];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < 2; ++v) sum[r][v] = Load(sums + r * stride + v * kLanes);
  }
  for (int64_t key = 0; key < keys; ++key, values += head_dim, next += head_dim) {
    const V v0 = LoadBf16(values), v1 = LoadBf16(values + kLanes);
    Fetch<64>(next);
    for (int r = 0; r < kRows; ++r) {
      const V weight = Splat(weights[r * weights_stride + key]);
      sum[r][0] = MulAdd(weight, v0, sum[r][0]);
      sum[r][1] = MulAdd(weight, v1, sum[r][1]);
    }
  }
#pragma GCC unroll kTileRows
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < 2; ++v) Store(sums + r * stride + v * kLanes, sum[r][v]);
  }
}

KVCAKE_ISA void PackValues(const KvView& kv, int64_t block, int64_t keys, int64_t head_dim,
                           Element* packed, const uint16_t* next) {
  const uint16_t* from = nullptr;
  for (int64_t key = 0; key < keys; ++key, from += head_dim) {
    if (key % 16 == 0) from = kv.Values(block + key);
    for (int64_t d = 0; d < head_dim; d += 32) Fetch<64>(next + key * head_dim + d);
    for (int64_t d = 0; d < head_dim; d += 8) {
      Store(packed + (d / 16 * kBlock + key) * 16 + d % 16, LoadBf16(from + d));
    }
  }
}

// A step is one key: nothing to mask.
void MaskTail(const Element*, int64_t, Element*) {}

template <int... kRows>
constexpr std::array<FewRows<Element>, kFewRows + 1> MakeFew(std::integer_sequence<int, kRows...>) {
  return {FewRows<Element>{}, FewRows<Element>{&Score<kRows + 1>, &AddValues<kRows + 1>}...};
}
constexpr auto kFew = MakeFew(std::make_integer_sequence<int, kFewRows>());

void Multiply(const MultiplyArgs& m);
void MultiplyInt8(const MultiplyInt8Args& m);

#include "ops/kernels_tiles_inl.h"
#include "ops/kernels_inl.h"
#include "ops/kernels_few_inl.h"

// One row by kWidePanels panels, without a detour through memory: the same chain of additions.
KVCAKE_ISA void MultiplyWideRow(const MultiplyArgs& m) {
  const auto* a = reinterpret_cast<const float*>(m.a);
  V sum[kWidePanels][2];
  for (auto& panel : sum) panel[0] = panel[1] = Splat(0.0f);
  for (int64_t k = 0; k < m.k; k += 2) {
    const V a0 = Splat(a[k]), a1 = Splat(a[k + 1]);
    for (int p = 0; p < kWidePanels; ++p) {
      const uint16_t* b = m.b + p * m.k * kPanel + k * kPanel;
      for (int v = 0; v < 2; ++v) {
        const auto pairs = LoadPairs(b + v * kPanel);
        sum[p][v] = MulAdd(a1, Second(pairs), MulAdd(a0, First(pairs), sum[p][v]));
      }
    }
  }
  for (int p = 0; p < kWidePanels; ++p) {
    for (int v = 0; v < 2; ++v) Store(m.c + p * kPanel + v * kLanes, sum[p][v]);
  }
}

KVCAKE_ISA void Multiply(const MultiplyArgs& m) {
  if (m.panels > 1) return MultiplyWideRow(m);
  constexpr int64_t kBlockK = 2048;  // 128 KiB of widened weights stay in the second-level cache
  static_assert(kBlockK * kPanel * sizeof(float) <= kMultiplyScratchBytes);
  const auto* a = reinterpret_cast<const float*>(m.a);
  auto* wide = reinterpret_cast<float*>(m.scratch);  // [k][kPanel]
  for (int64_t k0 = 0; k0 < m.k; k0 += kBlockK) {
    const int64_t n = m.k - k0 < kBlockK ? m.k - k0 : kBlockK;
    const uint16_t* b = m.b + k0 * kPanel;
    for (int64_t k = 0; k < n; k += 2) {
      for (int v = 0; v < 2; ++v) {
        const auto pairs = LoadPairs(b + k * kPanel + v * kPanel);
        Store(wide + k * kPanel + v * kLanes, First(pairs));
        Store(wide + (k + 1) * kPanel + v * kLanes, Second(pairs));
      }
    }
    Products::MultiplyRows(a + k0, m.a_stride, m.rows, wide, n, m.c, kPanel, k0 > 0,
                           Ahead(m, k0 + kBlockK));
  }
}

KVCAKE_ISA void MultiplyInt8WideRow(const MultiplyInt8Args& m) {
  const auto* a = reinterpret_cast<const Quantized*>(m.a);
  Ints sum[kWidePanels][2] = {};
  for (int64_t k = 0; k < m.k; k += kInt8Unit) {
    const auto row = SplatQuantized(a + k);
    for (int p = 0; p < kWidePanels; ++p) {
      const uint8_t* b = m.b + p * m.k * kPanel + k * kPanel;
      for (int v = 0; v < 2; ++v) {
        sum[p][v] = AddProducts(row, Widen(b + v * kLanes * kInt8Unit), sum[p][v]);
      }
    }
  }
  auto* c = reinterpret_cast<int32_t*>(m.c);
  for (int p = 0; p < kWidePanels; ++p) {
    for (int v = 0; v < 2; ++v) StoreInts(c + p * kPanel + v * kLanes, sum[p][v]);
  }
}

KVCAKE_ISA void MultiplyInt8(const MultiplyInt8Args& m) {
  if (m.panels > 1) {
    MultiplyInt8WideRow(m);
    ScaleBack(m);
    return;
  }
  constexpr int64_t kBlockK = 4096;  // 128 KiB of widened weights stay in the second-level cache
  static_assert(kBlockK * kPanel * sizeof(Int8Weight) <= kMultiplyScratchBytes);
  const auto* a = reinterpret_cast<const Quantized*>(m.a);
  // [k / kInt8Unit][kPanel][kInt8Unit]
  auto* wide = reinterpret_cast<Int8Weight*>(m.scratch);
  for (int64_t k = 0; k < m.k; k += kBlockK) {
    const int64_t n = m.k - k < kBlockK ? m.k - k : kBlockK;
    const uint8_t* b = m.b + k * kPanel;
    for (int64_t i = 0; i < n * kPanel; i += kLanes * kInt8Unit)
      StoreColumns(wide + i, Widen(b + i));
    Products::MultiplyRows(a + k, m.a_stride / sizeof(Quantized), m.rows, wide, n / kInt8Unit,
                           reinterpret_cast<int32_t*>(m.c), kPanel, k > 0,
                           Ahead(m, k + kBlockK));
  }
  ScaleBack(m);
}
