#include "codec/int8_kernels.h"

#if defined(__x86_64__)

// The intrinsics of GCC 12 read values that they then ignore.
#pragma GCC diagnostic ignored "-Wuninitialized"
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#include <immintrin.h>

#define KVCAKE_ISA __attribute__((target("avx2,avx512f,avx512bw,avx512dq,avx512vl")))

namespace kvcake {
namespace {

constexpr uint64_t kLanes = 16;
using V = __m512;

KVCAKE_ISA inline V LoadBf16(const uint16_t* from) {
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}
KVCAKE_ISA inline V Splat(uint16_t bf16) {
  return _mm512_castsi512_ps(_mm512_set1_epi32(bf16 << 16));
}
KVCAKE_ISA inline V LoadBytes(const uint8_t* from) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes));
}
KVCAKE_ISA inline V LoadBytes(const int8_t* from) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes));
}
KVCAKE_ISA inline V Mul(V a, V b) { return _mm512_mul_ps(a, b); }
KVCAKE_ISA inline V Add(V a, V b) { return _mm512_add_ps(a, b); }
// The CPU's own conversion to bf16 takes subnormal numbers for zeros.
KVCAKE_ISA inline void StoreBf16(uint16_t* to, V value) {
  const __m512i bits = _mm512_castps_si512(value);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i half = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
  const __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(bits, half), 16);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtepi32_epi16(rounded));
}

}  // namespace
}  // namespace kvcake

#include "codec/int8_inl.h"

namespace kvcake {

const Int8Kernels kInt8Avx512 = {DecodeKeys, DecodeValues};

}  // namespace kvcake

#endif  // __x86_64__
