// AVX2 with FMA: f32 arithmetic on weights that are widened on the fly.
#include "ops/kernels.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include <array>
#include <cstring>
#include <type_traits>
#include <utility>

#include "ops/attention.h"
#include "ops/bf16.h"

#define KVCAKE_ISA __attribute__((target("avx2,fma")))
#define KVCAKE_INLINE KVCAKE_ISA __attribute__((always_inline)) inline

namespace kvcake {
namespace {

using V = __m256;
using Element = float;
using Quantized = int16_t;
using Int8Weight = int16_t;
constexpr int kLanes = 8;
constexpr int kUnit = 1;
constexpr int kInt8Unit = 2;
constexpr int kTileRows = 6;
constexpr int kFewRows = 4;
constexpr int kWidePanels = 2;
constexpr int kAheadRows = 2;  // a single row waits for memory alone, and it streams better unasked
constexpr int kStepBytes = 32;  // of a panel, bf16 or int8

KVCAKE_INLINE V Load(const float* x) { return _mm256_loadu_ps(x); }
KVCAKE_INLINE void Store(float* to, V x) { _mm256_storeu_ps(to, x); }
KVCAKE_INLINE V Splat(float x) { return _mm256_set1_ps(x); }
KVCAKE_INLINE V MulAdd(V a, V b, V c) { return _mm256_fmadd_ps(a, b, c); }
KVCAKE_INLINE V Max(V a, V b) { return _mm256_max_ps(a, b); }
KVCAKE_INLINE V Abs(V x) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x); }
KVCAKE_INLINE float ReduceMax(V x) {
  __m128 m = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  m = _mm_max_ps(m, _mm_movehl_ps(m, m));
  return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}
KVCAKE_INLINE float ReduceAdd(V x) {
  __m128 s = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
// Rounds to nearest, ties to even; a NaN stays one.
KVCAKE_INLINE void StoreBf16(uint16_t* to, V x) {
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i bias = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
  const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, bias), 16);
  const __m256i nan = _mm256_or_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(0x40));
  const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  const __m256i halves = _mm256_blendv_epi8(rounded, nan, is_nan);
  const __m128i packed =
      _mm_packus_epi32(_mm256_castsi256_si128(halves), _mm256_extracti128_si256(halves, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), packed);
}
KVCAKE_INLINE void StoreElement(Element* to, V x) { Store(to, x); }
KVCAKE_INLINE V LoadElement(const Element* x) { return Load(x); }
// The low halves of `shifted` hold the values.
KVCAKE_INLINE void StoreQuantized(Quantized* to, V shifted) {
  const __m256i bits = _mm256_castps_si256(shifted);
  const __m256i values = _mm256_srai_epi32(_mm256_slli_epi32(bits, 16), 16);
  const __m128i packed =
      _mm_packs_epi32(_mm256_castsi256_si128(values), _mm256_extracti128_si256(values, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), packed);
}
KVCAKE_INLINE __m256i LoadInts(const int32_t* x) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x));
}
KVCAKE_INLINE void StoreInts(int32_t* to, __m256i x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), x);
}
KVCAKE_INLINE V LoadInt32(const int32_t* x, int32_t minus) {
  return _mm256_cvtepi32_ps(_mm256_sub_epi32(LoadInts(x), _mm256_set1_epi32(minus)));
}
// p * 2^n, where the low bits of `shifted` hold n.
KVCAKE_INLINE V ShiftExponent(V p, V shifted) {
  const __m256i n = _mm256_slli_epi32(_mm256_castps_si256(shifted), 23);
  return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), n));
}
KVCAKE_INLINE V LoadBf16(const uint16_t* x) {
  const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(x));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}
// Eight pairs of bf16: the first of each, and the second.
KVCAKE_INLINE __m256i LoadPairs(const uint16_t* x) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x));
}
KVCAKE_INLINE V First(__m256i pairs) { return _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16)); }
KVCAKE_INLINE V Second(__m256i pairs) {
  const __m256i mask = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
  return _mm256_castsi256_ps(_mm256_and_si256(pairs, mask));
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

// As __m256i, but of a type that GCC 12 keeps in registers.
typedef int Ints __attribute__((vector_size(32)));

// A pair of quantised values in every lane.
KVCAKE_INLINE __m256i SplatPair(const Quantized* a) {
  int pair;
  std::memcpy(&pair, a, sizeof(pair));
  return _mm256_set1_epi32(pair);
}

// b: [steps][kLanes * 2][2]. Products of bytes that were widened first never saturate.
template <int kRows, bool kAdd, bool kAhead>
KVCAKE_ISA void Int8Tile(const Quantized* a, int64_t a_stride, const Int8Weight* b, int64_t steps,
                         int32_t* c, int64_t c_stride, const std::byte* ahead) {
  Ints sum[kRows][2];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < 2; ++v) {
      sum[r][v] = kAdd ? (Ints)LoadInts(c + r * c_stride + v * kLanes) : Ints{};
    }
  }
  for (int64_t step = 0; step < steps; ++step) {
    const auto* from = reinterpret_cast<const __m256i*>(b + step * 4 * kLanes);
    const __m256i b0 = _mm256_loadu_si256(from), b1 = _mm256_loadu_si256(from + 1);
    if constexpr (kAhead) Fetch<kStepBytes>(ahead + step * kStepBytes);
    for (int r = 0; r < kRows; ++r) {
      const __m256i row = SplatPair(a + r * a_stride + 2 * step);
      sum[r][0] += (Ints)_mm256_madd_epi16(row, b0);
      sum[r][1] += (Ints)_mm256_madd_epi16(row, b1);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < 2; ++v) StoreInts(c + r * c_stride + v * kLanes, (__m256i)sum[r][v]);
  }
}

KVCAKE_INLINE void Transpose(const V x[8], V y[8]) {
  V t[8], u[8];
  for (int i = 0; i < 8; i += 2) {
    t[i] = _mm256_unpacklo_ps(x[i], x[i + 1]);
    t[i + 1] = _mm256_unpackhi_ps(x[i], x[i + 1]);
  }
  for (int i = 0; i < 8; i += 4) {
    u[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
    u[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
    u[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
    u[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
  }
  for (int i = 0; i < 4; ++i) {
    y[i] = _mm256_permute2f128_ps(u[i], u[4 + i], 0x20);
    y[4 + i] = _mm256_permute2f128_ps(u[i], u[4 + i], 0x31);
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
      Store(packed + (d / 16 * kAttentionBlock + key) * 16 + d % 16, LoadBf16(from + d));
    }
  }
}

// A step is one key: nothing to mask.
void MaskTail(const Element*, Element*) {}

template <int... kRows>
constexpr std::array<FewRows<Element>, kFewRows + 1> MakeFew(std::integer_sequence<int, kRows...>) {
  return {FewRows<Element>{}, FewRows<Element>{&Score<kRows + 1>, &AddValues<kRows + 1>}...};
}
constexpr auto kFew = MakeFew(std::make_integer_sequence<int, kFewRows>());

void Multiply(const MultiplyArgs& m);
void MultiplyInt8(const MultiplyInt8Args& m);

#include "ops/kernels_inl.h"

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
        const __m256i pairs = LoadPairs(b + v * kPanel);
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
        const __m256i pairs = LoadPairs(b + k * kPanel + v * kPanel);
        Store(wide + k * kPanel + v * kLanes, First(pairs));
        Store(wide + (k + 1) * kPanel + v * kLanes, Second(pairs));
      }
    }
    MultiplyRows(a + k0, m.a_stride, m.rows, wide, n, m.c, kPanel, k0 > 0, Ahead(m, k0 + kBlockK));
  }
}

KVCAKE_INLINE __m256i Widen(const uint8_t* b) {
  return _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(b)));
}

KVCAKE_ISA void MultiplyInt8WideRow(const MultiplyInt8Args& m) {
  const auto* a = reinterpret_cast<const Quantized*>(m.a);
  Ints sum[kWidePanels][2] = {};
  for (int64_t k = 0; k < m.k; k += 2) {
    const __m256i row = SplatPair(a + k);
    for (int p = 0; p < kWidePanels; ++p) {
      const uint8_t* b = m.b + p * m.k * kPanel + k * kPanel;
      for (int v = 0; v < 2; ++v) {
        sum[p][v] += (Ints)_mm256_madd_epi16(row, Widen(b + v * 2 * kLanes));
      }
    }
  }
  auto* c = reinterpret_cast<int32_t*>(m.c);
  for (int p = 0; p < kWidePanels; ++p) {
    for (int v = 0; v < 2; ++v) StoreInts(c + p * kPanel + v * kLanes, (__m256i)sum[p][v]);
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
  auto* wide = reinterpret_cast<Int8Weight*>(m.scratch);  // [k / 2][kPanel][2]
  for (int64_t k = 0; k < m.k; k += kBlockK) {
    const int64_t n = m.k - k < kBlockK ? m.k - k : kBlockK;
    const uint8_t* b = m.b + k * kPanel;
    for (int64_t i = 0; i < n * kPanel; i += 16) {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(wide + i), Widen(b + i));
    }
    MultiplyInt8Rows(a + k, m.a_stride / sizeof(Quantized), m.rows, wide, n / 2,
                     reinterpret_cast<int32_t*>(m.c), k > 0, Ahead(m, k + kBlockK));
  }
  ScaleBack(m);
}

}  // namespace

const Kernels* Avx2Kernels() { return &kKernels; }

}  // namespace kvcake

#else

namespace kvcake {
const Kernels* Avx2Kernels() { return nullptr; }
}  // namespace kvcake

#endif
