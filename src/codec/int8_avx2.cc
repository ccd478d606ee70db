#include "codec/int8_kernels.h"

#if defined(__x86_64__)

#include <immintrin.h>

#define KVCAKE_ISA __attribute__((target("avx2")))

namespace kvcake {
namespace {

constexpr uint64_t kLanes = 8;
using V = __m256;

KVCAKE_ISA inline V Widen(__m128i bf16) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bf16), 16));
}
KVCAKE_ISA inline V LoadBf16(const uint16_t* from) {
  return Widen(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}
KVCAKE_ISA inline V Splat(uint16_t bf16) {
  return _mm256_castsi256_ps(_mm256_set1_epi32(bf16 << 16));
}
KVCAKE_ISA inline V LoadBytes(const uint8_t* from) {
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
  return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes));
}
KVCAKE_ISA inline V LoadBytes(const int8_t* from) {
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
}
KVCAKE_ISA inline V Mul(V a, V b) { return _mm256_mul_ps(a, b); }
KVCAKE_ISA inline V Add(V a, V b) { return _mm256_add_ps(a, b); }
KVCAKE_ISA inline void StoreBf16(uint16_t* to, V value) {
  const __m256i bits = _mm256_castps_si256(value);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i half = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
  const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, half), 16);
  const __m128i low = _mm256_castsi256_si128(rounded);
  const __m128i packed = _mm_packus_epi32(low, _mm256_extracti128_si256(rounded, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), packed);
}

}  // namespace
}  // namespace kvcake

#include "codec/int8_inl.h"

namespace kvcake {

const Int8Kernels kInt8Avx2 = {DecodeKeys, DecodeValues};

}  // namespace kvcake

#endif  // __x86_64__
