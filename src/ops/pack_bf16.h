// The transposition that packing bf16 weights is.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>

namespace kvcake {

// to[k / 2][width][2] takes columns.size() <= width columns of k bf16 each, k a multiple of 16: the
// elements 2i and 2i + 1 of column c go to [i][c]. Columns may lie at any byte.
inline void PackBf16Columns(std::span<const void* const> columns, int64_t k, int64_t width,
                            uint16_t* to) {
  using Pairs = uint32_t __attribute__((vector_size(16)));  // of four columns, or four of one
  // A cache line of a column at once: columns a power of two apart share few sets of the cache.
  constexpr int64_t kLinePairs = 16;
  const auto from = [&](int64_t column, int64_t pair) {
    return static_cast<const char*>(columns[column]) + pair * 4;
  };
  const auto n = static_cast<int64_t>(columns.size()), whole = n / 4 * 4;
  for (int64_t line = 0; line < k / 2; line += kLinePairs) {
    const int64_t end = std::min(line + kLinePairs, k / 2);
    for (int64_t column = 0; column < whole; column += 4) {
      for (int64_t pair = line; pair < end; pair += 4) {
        Pairs in[4];
        for (int i = 0; i < 4; ++i) std::memcpy(&in[i], from(column + i, pair), sizeof(Pairs));
        const Pairs low01 = __builtin_shufflevector(in[0], in[1], 0, 4, 1, 5);
        const Pairs high01 = __builtin_shufflevector(in[0], in[1], 2, 6, 3, 7);
        const Pairs low23 = __builtin_shufflevector(in[2], in[3], 0, 4, 1, 5);
        const Pairs high23 = __builtin_shufflevector(in[2], in[3], 2, 6, 3, 7);
        const Pairs out[4] = {__builtin_shufflevector(low01, low23, 0, 1, 4, 5),
                              __builtin_shufflevector(low01, low23, 2, 3, 6, 7),
                              __builtin_shufflevector(high01, high23, 0, 1, 4, 5),
                              __builtin_shufflevector(high01, high23, 2, 3, 6, 7)};
        for (int i = 0; i < 4; ++i) {
          std::memcpy(to + ((pair + i) * width + column) * 2, &out[i], sizeof(Pairs));
        }
      }
    }
    for (int64_t column = whole; column < n; ++column) {
      for (int64_t pair = line; pair < end; ++pair) {
        std::memcpy(to + (pair * width + column) * 2, from(column, pair), 4);
      }
    }
  }
}

}  // namespace kvcake
