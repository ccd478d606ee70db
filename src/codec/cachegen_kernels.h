// The inner loop of reading `cachegen` parts, for each instruction set: range asymmetric numeral
// systems (rANS, arXiv 1311.2540) of 16 streams side by side, whose 16-bit words lie in one row.
#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/codec.h"

namespace kvcake {

constexpr uint64_t kRansLanes = 16;
constexpr uint32_t kRansLeast = 1u << 16;  // of a state between symbols
constexpr int kRansSymbolsMax = 32;

// The distribution of one channel. Symbol s has the slots from first on, `count` of them, as
// first | count << 16; behind the last symbol, first is 4096 and count 0.
struct RansTable {
  alignas(64) uint32_t of[kRansSymbolsMax];
  uint16_t firsts[kRansSymbolsMax];  // the same, for comparisons
  int symbols = 0;
};

struct RansReader {
  alignas(64) uint32_t states[kRansLanes];
  const uint8_t* at;   // the next word
  const uint8_t* end;  // behind the last
};

// Reads `count` symbols of one channel: symbol i is of lane i modulo 16. False when the words end
// before that.
using RansDecoder = bool (*)(RansReader* reader, const RansTable& table, uint64_t count,
                             uint8_t* symbols);
RansDecoder RansDecoderFor(CodecIsa isa);

bool DecodeRansPortable(RansReader* reader, const RansTable& table, uint64_t count,
                        uint8_t* symbols);
bool DecodeRansAvx2(RansReader* reader, const RansTable& table, uint64_t count, uint8_t* symbols);
bool DecodeRansAvx512(RansReader* reader, const RansTable& table, uint64_t count, uint8_t* symbols);

}  // namespace kvcake
