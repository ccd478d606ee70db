#include "base/bf16.h"
#include "codec/kvquant_kernels.h"

#define KVCAKE_ISA

namespace kvcake {
namespace {

constexpr uint64_t kLanes = 1;
using V = float;

inline unsigned CodeAt(const uint8_t* codes, uint64_t c);

struct Centroids {
  explicit Centroids(const float* from) : of(from) {}
  const float* of;
};
inline V Lookup(const Centroids& centroids, const uint8_t* codes, uint64_t c) {
  return centroids.of[CodeAt(codes, c)];
}
inline V Load(const float* from) { return *from; }
inline V Splat(float value) { return value; }
inline void Store(float* to, V value) { *to = value; }
inline V Mul(V a, V b) { return a * b; }
inline V Add(V a, V b) { return a + b; }
inline V Sub(V a, V b) { return a - b; }
inline void StoreBf16(uint16_t* to, V value) { *to = NumberToBf16(value); }

}  // namespace
}  // namespace kvcake

#include "codec/kvquant_inl.h"

namespace kvcake {

const KvQuantKernels kKvQuantPortable = {DecodeKeys, DecodeValues, Rotate};

const KvQuantKernels& KvQuantKernelsFor(CodecIsa isa) {
#if defined(__x86_64__)
  if (isa == CodecIsa::kAvx2) return kKvQuantAvx2;
  if (isa == CodecIsa::kAvx512) return kKvQuantAvx512;
#endif
  return kKvQuantPortable;
}

}  // namespace kvcake
