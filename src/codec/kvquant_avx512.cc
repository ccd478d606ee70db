#include <cstring>

#include "codec/kvquant_kernels.h"

#if defined(__x86_64__)

#define KVCAKE_ISA __attribute__((target("avx2,bmi2,avx512f,avx512bw,avx512dq,avx512vl")))

#include "codec/vectors_avx512_inl.h"

namespace kvcake {
namespace {

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
KVCAKE_ISA inline V Sub(V a, V b) { return _mm512_sub_ps(a, b); }

}  // namespace
}  // namespace kvcake

#include "codec/kvquant_inl.h"

namespace kvcake {

const KvQuantKernels kKvQuantAvx512 = {DecodeKeys, DecodeValues, Rotate};

}  // namespace kvcake

#endif  // __x86_64__
