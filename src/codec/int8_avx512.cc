#include "codec/int8_kernels.h"

#if defined(__x86_64__)

#define KVCAKE_ISA __attribute__((target("avx2,avx512f,avx512bw,avx512dq,avx512vl")))

#include "codec/vectors_avx512_inl.h"

namespace kvcake {
namespace {

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

}  // namespace
}  // namespace kvcake

#include "codec/int8_inl.h"

namespace kvcake {

const Int8Kernels kInt8Avx512 = {DecodeKeys, DecodeValues};

}  // namespace kvcake

#endif  // __x86_64__
