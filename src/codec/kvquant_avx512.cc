#include <cstring>

#include "codec/kvquant_kernels.h"

#if defined(__x86_64__)

// The intrinsics of GCC 12 read values that they then ignore.
#pragma GCC diagnostic ignored "-Wuninitialized"
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#include <immintrin.h>

#define KVCAKE_ISA __attribute__((target("avx2,bmi2,avx512f,avx512bw,avx512dq,avx512vl")))

namespace kvcake {
namespace {

constexpr uint64_t kLanes = 16;
using V = __m512;

struct Centroids {
  KVCAKE_ISA explicit Centroids(const float* from)
      : of(_mm512_broadcast_f32x8(_mm256_loadu_ps(from))) {}
  V of;
};
// Sixteen codes are six bytes.
KVCAKE_ISA inline V Lookup(const Centroids& centroids, const uint8_t* codes, uint64_t c) {
  uint64_t bits = 0;
  std::memcpy(&bits, codes + c / 8 * 3, 6);
  constexpr uint64_t kCodes = 0x0707070707070707;
  const auto low = static_cast<int64_t>(_pdep_u64(bits, kCodes));
  const auto high = static_cast<int64_t>(_pdep_u64(bits >> 24, kCodes));
  return _mm512_permutexvar_ps(_mm512_cvtepu8_epi32(_mm_set_epi64x(high, low)), centroids.of);
}
KVCAKE_ISA inline V Load(const float* from) { return _mm512_loadu_ps(from); }
KVCAKE_ISA inline V Splat(float value) { return _mm512_set1_ps(value); }
KVCAKE_ISA inline void Store(float* to, V value) { _mm512_storeu_ps(to, value); }
KVCAKE_ISA inline V Mul(V a, V b) { return _mm512_mul_ps(a, b); }
KVCAKE_ISA inline V Add(V a, V b) { return _mm512_add_ps(a, b); }
KVCAKE_ISA inline V Sub(V a, V b) { return _mm512_sub_ps(a, b); }
KVCAKE_ISA inline void StoreBf16(uint16_t* to, V value) {
  const __m512i bits = _mm512_castps_si512(value);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i half = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
  const __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(bits, half), 16);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtepi32_epi16(rounded));
}

}  // namespace
}  // namespace kvcake

#include "codec/kvquant_inl.h"

namespace kvcake {

const KvQuantKernels kKvQuantAvx512 = {DecodeKeys, DecodeValues, Rotate};

}  // namespace kvcake

#endif  // __x86_64__
