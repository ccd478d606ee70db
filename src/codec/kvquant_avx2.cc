#include <cstring>

#include "codec/kvquant_kernels.h"

#if defined(__x86_64__)

#define KVCAKE_ISA __attribute__((target("avx2,bmi2")))

#include "codec/vectors_avx2_inl.h"

namespace kvcake {
namespace {

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
KVCAKE_ISA inline V Sub(V a, V b) { return _mm256_sub_ps(a, b); }

}  // namespace
}  // namespace kvcake

#include "codec/kvquant_inl.h"

namespace kvcake {

const KvQuantKernels kKvQuantAvx2 = {DecodeKeys, DecodeValues, Rotate};

}  // namespace kvcake

#endif  // __x86_64__
