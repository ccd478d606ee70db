// f32-fma with AVX2 and FMA.
#include "ops/kernels.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include <array>
#include <cstring>
#include <type_traits>
#include <utility>

#include "ops/attention.h"
#include "base/bf16.h"

#define KVCAKE_ISA __attribute__((target("avx2,fma")))
#define KVCAKE_INLINE KVCAKE_ISA __attribute__((always_inline)) inline

namespace kvcake {
namespace {

using V = __m256;
// As __m256i, but of a type that GCC 12 keeps in registers.
typedef int Ints __attribute__((vector_size(32)));
constexpr int kInt8Unit = 2;

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
// The low halves of `shifted` hold the values.
KVCAKE_INLINE void StoreQuantized(int16_t* to, V shifted) {
  const __m256i bits = _mm256_castps_si256(shifted);
  const __m256i values = _mm256_srai_epi32(_mm256_slli_epi32(bits, 16), 16);
  const __m128i packed =
      _mm_packs_epi32(_mm256_castsi256_si128(values), _mm256_extracti128_si256(values, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), packed);
}
KVCAKE_INLINE Ints LoadInts(const int32_t* x) {
  return (Ints)_mm256_loadu_si256(reinterpret_cast<const __m256i*>(x));
}
KVCAKE_INLINE void StoreInts(int32_t* to, Ints x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), (__m256i)x);
}
KVCAKE_INLINE V LoadInt32(const int32_t* x, int32_t minus) {
  return _mm256_cvtepi32_ps((__m256i)(LoadInts(x) - minus));
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
KVCAKE_INLINE __m256i LoadPairs(const uint16_t* x) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x));
}
KVCAKE_INLINE V First(__m256i pairs) { return _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16)); }
KVCAKE_INLINE V Second(__m256i pairs) {
  const __m256i mask = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
  return _mm256_castsi256_ps(_mm256_and_si256(pairs, mask));
}

// A pair of bytes of each column.
KVCAKE_INLINE __m256i LoadColumns(const int16_t* b) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(b));
}
KVCAKE_INLINE void StoreColumns(int16_t* to, __m256i columns) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), columns);
}
KVCAKE_INLINE __m256i Widen(const uint8_t* b) {
  return _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(b)));
}
KVCAKE_INLINE __m256i SplatQuantized(const int16_t* a) {
  int pair;
  std::memcpy(&pair, a, sizeof(pair));
  return _mm256_set1_epi32(pair);
}
// Products of bytes that were widened first never saturate.
KVCAKE_INLINE Ints AddProducts(__m256i row, __m256i columns, Ints sum) {
  return sum + (Ints)_mm256_madd_epi16(row, columns);
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

#include "ops/kernels_fma_inl.h"

}  // namespace

const Kernels* Avx2Kernels() { return &kKernels; }

}  // namespace kvcake

#else

namespace kvcake {
const Kernels* Avx2Kernels() { return nullptr; }
}  // namespace kvcake

#endif
