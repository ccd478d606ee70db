#include "codec/int8_kernels.h"

#define KVCAKE_ISA

namespace kvcake {
namespace {

constexpr uint64_t kLanes = 1;
using V = float;

inline float Widened(uint16_t bf16);
inline uint16_t Rounded(float value);
inline V LoadBf16(const uint16_t* from) { return Widened(*from); }
inline V Splat(uint16_t bf16) { return Widened(bf16); }
inline V LoadBytes(const uint8_t* from) { return static_cast<float>(*from); }
inline V LoadBytes(const int8_t* from) { return static_cast<float>(*from); }
inline V Mul(V a, V b) { return a * b; }
inline V Add(V a, V b) { return a + b; }
inline void StoreBf16(uint16_t* to, V value) { *to = Rounded(value); }

}  // namespace
}  // namespace kvcake

#include "codec/int8_inl.h"

namespace kvcake {

const Int8Kernels kInt8Portable = {DecodeKeys, DecodeValues};

const Int8Kernels& Int8KernelsFor(CodecIsa isa) {
#if defined(__x86_64__)
  if (isa == CodecIsa::kAvx2) return kInt8Avx2;
  if (isa == CodecIsa::kAvx512) return kInt8Avx512;
#endif
  return kInt8Portable;
}

}  // namespace kvcake
