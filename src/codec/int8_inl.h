// The loops of int8_kernels.h over vectors of some width, compiled once for each instruction set by
// the file that includes it. That file defines KVCAKE_ISA, the attribute of its functions, and in
// its anonymous namespace
//
//   constexpr uint64_t kLanes;
//   using V = ...;                                  // kLanes f32
//   V LoadBf16(const uint16_t*); V Splat(uint16_t bf16);
//   V LoadBytes(const uint8_t*); V LoadBytes(const int8_t*);
//   V Mul(V, V); V Add(V, V);
//   void StoreBf16(uint16_t*, V);                   // of no NaN
#include "base/bf16.h"
#include "codec/int8_kernels.h"

namespace kvcake {
namespace {

KVCAKE_ISA void DecodeKeys(const uint8_t* bytes, const uint16_t* bases, const uint16_t* steps,
                           uint64_t rows, uint64_t channels, uint16_t* values) {
  uint64_t c = 0;
  for (; c + kLanes <= channels; c += kLanes) {
    const V base = LoadBf16(bases + c), step = LoadBf16(steps + c);
    for (uint64_t row = 0; row < rows; ++row) {
      const uint64_t at = row * channels + c;
      StoreBf16(values + at, Add(Mul(LoadBytes(bytes + at), step), base));
    }
  }
  for (; c < channels; ++c) {
    const float base = Bf16ToF32(bases[c]), step = Bf16ToF32(steps[c]);
    for (uint64_t row = 0; row < rows; ++row) {
      const uint64_t at = row * channels + c;
      values[at] = NumberToBf16(static_cast<float>(bytes[at]) * step + base);
    }
  }
}

KVCAKE_ISA void DecodeValues(const int8_t* bytes, const uint16_t* steps, uint64_t rows,
                             uint64_t channels, uint16_t* values) {
  for (uint64_t row = 0; row < rows; ++row) {
    const V step = Splat(steps[row]);
    const uint64_t first = row * channels;
    uint64_t c = 0;
    for (; c + kLanes <= channels; c += kLanes) {
      StoreBf16(values + first + c, Mul(LoadBytes(bytes + first + c), step));
    }
    for (; c < channels; ++c) {
      values[first + c] =
          NumberToBf16(static_cast<float>(bytes[first + c]) * Bf16ToF32(steps[row]));
    }
  }
}

}  // namespace
}  // namespace kvcake
