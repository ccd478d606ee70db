// The vectors of kernels with AVX2, for files that define KVCAKE_ISA as what *_inl.h wants of them.
#include <immintrin.h>

#include <cstdint>

namespace kvcake {
namespace {

constexpr uint64_t kLanes = 8;
using V = __m256;

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
