// The inner loops of reading `kvquant3` parts, for each instruction set: in f32, a product and a
// sum at a time.
#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/codec.h"

namespace kvcake {

// A row is a token of a head: its codes are 3 bits each, the first the lowest of the first byte,
// RowBytes(channels) in all.
constexpr uint64_t KvQuantRowBytes(uint64_t channels) { return (3 * channels + 7) / 8; }

struct KvQuantKernels {
  // Channel c of each row is offsets[c] + scales[c] * centroids[code].
  void (*keys)(const uint8_t* codes, const float* centroids, const float* offsets,
               const float* scales, uint64_t rows, uint64_t channels, float* numbers);
  // Each number of row r is offsets[r] + scales[r] * centroids[code], rounded to the nearest bf16,
  // ties to even.
  void (*values)(const uint8_t* codes, const float* centroids, const float* offsets,
                 const float* scales, uint64_t rows, uint64_t channels, uint16_t* numbers);
  // Turns channels c and c + channels / 2 of each row by its angle c, whose cosines and sines are
  // [row][channels / 2]; a last odd channel stays. Rounds as `values`.
  void (*rotate)(const float* numbers, const float* cosines, const float* sines, uint64_t rows,
                 uint64_t channels, uint16_t* rotated);
};

extern const KvQuantKernels kKvQuantPortable, kKvQuantAvx2, kKvQuantAvx512;
const KvQuantKernels& KvQuantKernelsFor(CodecIsa isa);

}  // namespace kvcake
