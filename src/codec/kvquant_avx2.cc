#include <cstring>

#include "codec/kvquant_kernels.h"

#if defined(__x86_64__)

#include <immintrin.h>

#define KVCAKE_ISA __attribute__((target("avx2,bmi2")))

namespace kvcake {
namespace {

constexpr uint64_t kLanes = 8;
using V = __m256;

struct Centroids {
  KVCAKE_ISA explicit Centroids(const float* from) : of(_mm256_loadu_ps(from)) {}
  V of;
};
// Eight codes are three bytes.
KVCAKE_ISA inline V Lookup(const Centroids& centroids, const uint8_t* codes, uint64_t c) {
  uint32_t bits = 0;
  std::memcpy(&bits, codes + c / 8 * 3, 3);
  const auto bytes = static_cast<int64_t>(_pdep_u64(bits, 0x0707070707070707));
  return _mm256_permutevar8x32_ps(centroids.of, _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(bytes)));
}
KVCAKE_ISA inline V Load(const float* from) { return _mm256_loadu_ps(from); }
KVCAKE_ISA inline V Splat(float value) { return _mm256_set1_ps(value); }
KVCAKE_ISA inline void Store(float* to, V value) { _mm256_storeu_ps(to, value); }
KVCAKE_ISA inline V Mul(V a, V b) { return _mm256_mul_ps(a, b); }
KVCAKE_ISA inline V Add(V a, V b) { return _mm256_add_ps(a, b); }
KVCAKE_ISA inline V Sub(V a, V b) { return _mm256_sub_ps(a, b); }
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

#include "codec/kvquant_inl.h"

namespace kvcake {

const KvQuantKernels kKvQuantAvx2 = {DecodeKeys, DecodeValues, Rotate};

}  // namespace kvcake

#endif  // __x86_64__
