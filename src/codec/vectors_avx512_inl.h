// The vectors of kernels with AVX-512, for files that define KVCAKE_ISA as what *_inl.h wants of
// them.
#include "codec/avx512_intrinsics.h"

namespace kvcake {
namespace {

constexpr uint64_t kLanes = 16;
using V = __m512;

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
