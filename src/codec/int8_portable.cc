#include "base/bf16.h"
#include "codec/int8_kernels.h"

#define KVCAKE_ISA

namespace kvcake {
namespace {

constexpr uint64_t kLanes = 1;
using V = float;

inline V LoadBf16(const uint16_t* from) { return Bf16ToF32(*from); }
inline V Splat(uint16_t bf16) { return Bf16ToF32(bf16); }
inline V LoadBytes(const uint8_t* from) { return static_cast<float>(*from); }
inline V LoadBytes(const int8_t* from) { return static_cast<float>(*from); }
inline V Mul(V a, V b) { return a * b; }
inline V Add(V a, V b) { return a + b; }
inline void StoreBf16(uint16_t* to, V value) { *to = NumberToBf16(value); }

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
