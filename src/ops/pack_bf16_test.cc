#include "ops/pack_bf16.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace kvcake {
namespace {

TEST(PackBf16Test, PairsOfEveryColumnLieSideBySide) {
  std::mt19937 random(7);
  for (int trial = 0; trial < 50; ++trial) {
    const int64_t k = 16 * (1 + random() % 7), width = 16 * (1 + random() % 2);
    const int64_t n = 1 + random() % width, shift = random() % 3;  // bytes
    std::vector<std::vector<char>> bytes(n, std::vector<char>(k * 2 + shift));
    std::vector<const void*> columns;
    for (auto& column : bytes) {
      for (char& byte : column) byte = static_cast<char>(random());
      columns.push_back(column.data() + shift);
    }
    std::vector<uint16_t> packed(k * width, 0xabcd);
    PackBf16Columns(columns, k, width, packed.data());
    for (int64_t i = 0; i < k * width; ++i) {
      const int64_t element = i / width / 2 * 2 + i % 2, column = i / 2 % width;
      uint16_t expected = 0xabcd;  // columns past n are left alone
      if (column < n) std::memcpy(&expected, &bytes[column][shift + element * 2], 2);
      ASSERT_EQ(packed[i], expected) << "element " << element << " of column " << column;
    }
  }
}

}  // namespace
}  // namespace kvcake
