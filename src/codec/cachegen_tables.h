// The tables of `cachegen`: what docs/format.md calls their body, and back.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "codec/cachegen_kernels.h"
#include "codec/codec_tables.h"

namespace kvcake {

constexpr int kRansBits = 12;
constexpr uint32_t kRansTotal = 1u << kRansBits;

// K or V of one layer.
struct CacheGenPlane {
  int most = 0;             // m: numbers are -m to m, 1 to kCacheGenMost
  uint16_t first_step = 0;  // bf16, more than 0
  // [kv_head][channel][2 m + 1]: how many of 4096 each number from -m on is; at least 1.
  std::vector<uint16_t> counts;
};
constexpr int kCacheGenMost = 15;
constexpr int kStepCodes = 256;

// The steps that a code stands for, in order: first_step * 2^(code / 16), rounded to bf16.
std::array<uint16_t, kStepCodes> CacheGenSteps(uint16_t first_step);

// [layer][K or V].
std::vector<std::byte> CacheGenBody(const std::vector<CacheGenPlane>& planes);
// kCorrupt unless the body is one for tables of such a header.
Result<std::vector<CacheGenPlane>> ParseCacheGen(const CodecTables& tables);

// What an encoder or decoder looks up for one channel of a plane.
RansTable MakeRansTable(const uint16_t* counts, int symbols);

}  // namespace kvcake
