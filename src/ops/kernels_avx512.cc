// AVX-512 with BF16 dot products (Zen 4, Cooper Lake, Sapphire Rapids).
#include "ops/kernels.h"

#if defined(__x86_64__)

// The intrinsics of GCC 12 read values that they then ignore.
#pragma GCC diagnostic ignored "-Wuninitialized"
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#include <immintrin.h>

#include <array>
#include <cstring>
#include <type_traits>
#include <utility>

#include "ops/attention.h"
#include "base/bf16.h"

#define KVCAKE_ISA \
  __attribute__((target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx512vnni")))
#define KVCAKE_INLINE KVCAKE_ISA __attribute__((always_inline)) inline

namespace kvcake {
namespace {

constexpr int64_t kBlock = kAttentionBlock;
constexpr int64_t kDepth = 2;

#include "ops/kernels_avx512_inl.h"

constexpr int kTileRows = 12;
constexpr int kFewRows = 8;
constexpr int kWidePanels = 1;
constexpr int kAheadRows = 6;    // fewer rows wait for memory alone, and it streams better unasked
constexpr int kStepBytes = 128;  // of a panel, bf16 or int8

// b: [steps][kLanes * 2][2].
template <int kRows, bool kAdd, bool kAhead>
KVCAKE_ISA void Tile(const Element* a, int64_t a_stride, const Element* b, int64_t steps, float* c,
                     int64_t c_stride, const std::byte* ahead) {
  constexpr int kVectors = 2;
  V sum[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      sum[r][v] = kAdd ? Load(c + r * c_stride + v * kLanes) : Splat(0.0f);
    }
  }
  for (int64_t step = 0; step < steps; ++step) {
    __m512i columns[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      columns[v] = LoadBits(b + step * 64 + v * 32);
    }
    if constexpr (kAhead) Fetch<kStepBytes>(ahead + step * kStepBytes);
    for (int r = 0; r < kRows; ++r) {
      int pair;
      std::memcpy(&pair, a + r * a_stride + 2 * step, sizeof(pair));
      const __m512bh row = (__m512bh)_mm512_set1_epi32(pair);
      for (int v = 0; v < kVectors; ++v) {
        sum[r][v] = _mm512_dpbf16_ps(sum[r][v], row, (__m512bh)columns[v]);
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) Store(c + r * c_stride + v * kLanes, sum[r][v]);
  }
}

// As __m512i, but of a type that GCC 12 keeps in registers.
typedef int Ints __attribute__((vector_size(64)));

// b: [steps][kLanes * 2][4].
template <int kRows, bool kAdd, bool kAhead>
KVCAKE_ISA void Int8Tile(const Quantized* a, int64_t a_stride, const Int8Weight* b, int64_t steps,
                         int32_t* c, int64_t c_stride, const std::byte* ahead) {
  constexpr int kVectors = 2;
  Ints sum[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      sum[r][v] = kAdd ? (Ints)_mm512_loadu_si512(c + r * c_stride + v * kLanes) : Ints{};
    }
  }
  for (int64_t step = 0; step < steps; ++step) {
    __m512i columns[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      columns[v] = _mm512_loadu_si512(b + step * 128 + v * 64);
    }
    if constexpr (kAhead) Fetch<kStepBytes>(ahead + step * kStepBytes);
    for (int r = 0; r < kRows; ++r) {
      int four;
      std::memcpy(&four, a + r * a_stride + 4 * step, sizeof(four));
      const __m512i row = _mm512_set1_epi32(four);
      for (int v = 0; v < kVectors; ++v) {
        sum[r][v] = (Ints)_mm512_dpbusd_epi32((__m512i)sum[r][v], columns[v], row);
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      _mm512_storeu_si512(c + r * c_stride + v * kLanes, (__m512i)sum[r][v]);
    }
  }
}

// sum[r] += 8 pairs of q's dimensions x `columns` of as many keys as a vector holds.
template <int kRows>
KVCAKE_INLINE void AddPairs(const Element* q, int64_t head_dim, const __m512i* columns, V* sum) {
#pragma GCC unroll 8
  for (int pair = 0; pair < 8; ++pair) {
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      int two;
      std::memcpy(&two, q + r * head_dim + 2 * pair, sizeof(two));
      const __m512bh row = (__m512bh)_mm512_set1_epi32(two);
      sum[r] = _mm512_dpbf16_ps(sum[r], row, (__m512bh)columns[pair]);
    }
  }
}

template <int kRows>
KVCAKE_ISA void Score(const Element* q, const uint16_t* keys, const uint16_t* next,
                      int64_t head_dim, float* scores, int64_t stride) {
  V sum[kRows];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) sum[r] = Splat(0.0f);
  for (int64_t d = 0; d < head_dim; d += 32) {
    const bool whole = head_dim - d >= 32;
    __m512i rows[16], columns[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) {
      rows[i] = _mm512_maskz_loadu_epi32(whole ? 0xffff : 0x00ff, keys + i * head_dim + d);
      Fetch<64>(next + i * head_dim + d);
    }
    Transpose(rows, columns);
    AddPairs<kRows>(q + d, head_dim, columns, sum);
    if (whole) AddPairs<kRows>(q + d + 16, head_dim, columns + 8, sum);
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) Store(scores + r * stride, sum[r]);
}

template <int kRows>
KVCAKE_ISA void AddValues(const Element* weights, int64_t weights_stride, const uint16_t* values,
                          const uint16_t* next, int64_t keys, int64_t head_dim, int64_t dims,
                          float* sums, int64_t stride) {
  // Interleaving leaves four dimensions of every eight in the first vector, and four in the second.
  const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27);
  const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(4));
  const __m512i low = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
  const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
  const __mmask16 mask = dims >= 32 ? 0xffff : 0x00ff;
  V sum[kRows][2];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    const V a = Load(sums + r * stride), b = Load(sums + r * stride + kLanes);
    sum[r][0] = _mm512_permutex2var_ps(a, first, b);
    sum[r][1] = _mm512_permutex2var_ps(a, second, b);
  }
  for (int64_t key = 0; key < keys; key += 2, values += 2 * head_dim, next += 2 * head_dim) {
    const __m512i even = _mm512_maskz_loadu_epi32(mask, values);
    // A key that is not there has the weight 0, but its value may be a NaN.
    const __m512i odd = _mm512_maskz_loadu_epi32(key + 1 < keys ? mask : 0, values + head_dim);
    Fetch<64>(next);
    Fetch<64>(next + head_dim);
    const auto columns0 = (__m512bh)_mm512_unpacklo_epi16(even, odd);
    const auto columns1 = (__m512bh)_mm512_unpackhi_epi16(even, odd);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      int two;
      std::memcpy(&two, weights + r * weights_stride + key, sizeof(two));
      const __m512bh row = (__m512bh)_mm512_set1_epi32(two);
      sum[r][0] = _mm512_dpbf16_ps(sum[r][0], row, columns0);
      sum[r][1] = _mm512_dpbf16_ps(sum[r][1], row, columns1);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    Store(sums + r * stride, _mm512_permutex2var_ps(sum[r][0], low, sum[r][1]));
    Store(sums + r * stride + kLanes, _mm512_permutex2var_ps(sum[r][0], high, sum[r][1]));
  }
}

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

void Multiply(const MultiplyArgs& m) {
  constexpr int64_t kBlockK = 4096;  // 256 KiB of a panel stay in the second-level cache
  const auto* a = reinterpret_cast<const Element*>(m.a);
  for (int64_t k = 0; k < m.k; k += kBlockK) {
    const int64_t steps = (m.k - k < kBlockK ? m.k - k : kBlockK) / kUnit;
    const Element* b = m.b + k * kPanel;
    Products::MultiplyRows(a + k, m.a_stride, m.rows, b, steps, m.c, kPanel, k > 0,
                           Ahead(m, k + kBlockK));
  }
}

void MultiplyInt8(const MultiplyInt8Args& m) {
  constexpr int64_t kBlockK = 8192;  // 256 KiB of a panel stay in the second-level cache
  const auto* a = reinterpret_cast<const Quantized*>(m.a);
  auto* c = reinterpret_cast<int32_t*>(m.c);
  for (int64_t k = 0; k < m.k; k += kBlockK) {
    const int64_t steps = (m.k - k < kBlockK ? m.k - k : kBlockK) / kInt8Unit;
    const Int8Weight* b = m.b + k * kPanel;
    Products::MultiplyRows(a + k, m.a_stride, m.rows, b, steps, c, kPanel, k > 0,
                           Ahead(m, k + kBlockK));
  }
  ScaleBack(m);
}

}  // namespace

const Kernels* Avx512Kernels() { return &kKernels; }

}  // namespace kvcake

#else

namespace kvcake {
const Kernels* Avx512Kernels() { return nullptr; }
}  // namespace kvcake

#endif
