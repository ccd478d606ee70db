// The inner loop of reading `lossless` parts, for each instruction set.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "codec/codec.h"

namespace kvcake {

constexpr size_t kGroupValues = 64;  // whose bits are interleaved
constexpr int kTableWidthMax = 4;

// One block of a part. Values come in groups of 64; the last may be larger than the block.
struct LosslessBlock {
  const uint8_t* rest = nullptr;    // of each value, sign and mantissa
  const uint8_t* planes = nullptr;  // of each group, for each bit of the places 64 bits
  // The exponents that are not in the table, in order; kGroupValues bytes behind them may be read.
  const uint8_t* escapes = nullptr;
  uint64_t escape_count = 0;
  std::array<uint8_t, 16> table = {};  // of 2^width - 1 exponents
  int width = 0;
};

// Writes `count` values; false unless there are exactly as many escapes as they need.
using LosslessDecoder = bool (*)(const LosslessBlock& block, uint64_t count, uint16_t* values);
LosslessDecoder LosslessDecoderFor(CodecIsa isa);

bool DecodeLosslessPortable(const LosslessBlock& block, uint64_t count, uint16_t* values);
bool DecodeLosslessAvx2(const LosslessBlock& block, uint64_t count, uint16_t* values);
bool DecodeLosslessAvx512(const LosslessBlock& block, uint64_t count, uint16_t* values);

}  // namespace kvcake
