// The loop over a block's groups, compiled once for each instruction set by the file that includes
// it. That file defines KVCAKE_ISA, the attribute of its functions, and in its anonymous namespace
//
//   struct Tables;  // made of a block's table
//   // Writes a group: `places` are its planes, `escaped` those that have an escape.
//   template <int kWidth>
//   void DecodeGroup(const Tables&, const uint8_t* rest, const uint64_t* places, uint64_t escaped,
//                    const uint8_t* escapes, uint16_t* values);
#include <algorithm>
#include <bit>
#include <cstring>

#include "codec/lossless_kernels.h"

namespace kvcake {
namespace {

template <int kWidth>
KVCAKE_ISA bool DecodeGroups(const LosslessBlock& block, uint64_t count, uint16_t* values) {
  const Tables tables(block.table);
  const uint8_t* escapes = block.escapes;
  uint64_t left = block.escape_count;
  const uint64_t groups = (count + kGroupValues - 1) / kGroupValues;
  uint16_t last[kGroupValues];
  for (uint64_t group = 0; group < groups; ++group) {
    uint64_t places[kTableWidthMax] = {};
    uint64_t escaped = ~uint64_t{0};
    for (int bit = 0; bit < kWidth; ++bit) {
      std::memcpy(&places[bit], block.planes + 8 * (group * kWidth + bit), 8);
      escaped &= places[bit];
    }
    const auto escapes_here = static_cast<uint64_t>(std::popcount(escaped));
    if (escapes_here > left) return false;
    const uint64_t at = group * kGroupValues;
    const bool whole = count - at >= kGroupValues;
    DecodeGroup<kWidth>(tables, block.rest + at, places, escaped, escapes,
                        whole ? values + at : last);
    if (!whole) std::memcpy(values + at, last, (count - at) * sizeof(uint16_t));
    escapes += escapes_here;
    left -= escapes_here;
  }
  return left == 0;
}

KVCAKE_ISA bool DecodeBlock(const LosslessBlock& block, uint64_t count, uint16_t* values) {
  switch (block.width) {
    case 0:
      return DecodeGroups<0>(block, count, values);
    case 1:
      return DecodeGroups<1>(block, count, values);
    case 2:
      return DecodeGroups<2>(block, count, values);
    case 3:
      return DecodeGroups<3>(block, count, values);
    case 4:
      return DecodeGroups<4>(block, count, values);
  }
  return false;
}

}  // namespace
}  // namespace kvcake
