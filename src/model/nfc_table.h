// Unicode's data for normalisation; nfc_table.cc is made by tools/make_nfc_table.py.
#pragma once

#include <cstdint>
#include <span>

namespace kvcake {

struct CombiningRange {
  uint32_t first;
  uint32_t last;
  uint32_t combining_class;
};
// One step of a canonical decomposition. `second` is 0 where it is a single character.
struct Decomposition {
  uint32_t code;
  uint32_t first;
  uint32_t second;
};

// All in ascending order.
std::span<const CombiningRange> CombiningRanges();
std::span<const Decomposition> Decompositions();
// Pairs that stay apart although `code` decomposes into them.
std::span<const uint32_t> NeverComposed();

}  // namespace kvcake
