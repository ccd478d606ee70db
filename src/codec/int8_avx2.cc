#include "codec/int8_kernels.h"

#if defined(__x86_64__)

#define KVCAKE_ISA __attribute__((target("avx2")))

#include "codec/vectors_avx2_inl.h"

namespace kvcake {
namespace {

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

}  // namespace
}  // namespace kvcake

#include "codec/int8_inl.h"

namespace kvcake {

const Int8Kernels kInt8Avx2 = {DecodeKeys, DecodeValues};

}  // namespace kvcake

#endif  // __x86_64__
