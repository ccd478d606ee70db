// The inner loops of reading `int8` parts, for each instruction set: value = base + n * step in
// f32, a product and a sum, rounded to the nearest bf16, ties to even.
#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/codec.h"

namespace kvcake {

// Rows of `channels` bytes each; bases and steps are bf16 and finite.
struct Int8Kernels {
  // Row by row: channel c is bases[c] + n * steps[c].
  void (*keys)(const uint8_t* bytes, const uint16_t* bases, const uint16_t* steps, uint64_t rows,
               uint64_t channels, uint16_t* values);
  // Each number of row r is n * steps[r].
  void (*values)(const int8_t* bytes, const uint16_t* steps, uint64_t rows, uint64_t channels,
                 uint16_t* values);
};

extern const Int8Kernels kInt8Portable, kInt8Avx2, kInt8Avx512;
const Int8Kernels& Int8KernelsFor(CodecIsa isa);

}  // namespace kvcake
