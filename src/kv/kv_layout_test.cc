#include "kv/kv_layout.h"

#include <gtest/gtest.h>

namespace kvcake {
namespace {

KvLayout Layout(int head_dim) {
  return {.layers = 3, .kv_heads = 2, .head_dim = head_dim, .chunk_tokens = 16};
}

// Files that another size would make unreadable have these bytes.
TEST(KvLayoutTest, ASlabIsRoundedUpToWholeBlocks) {
  EXPECT_EQ(Layout(32).slab_payload_bytes(), 4096u);
  EXPECT_EQ(Layout(32).slab_bytes(), 4096u) << "no block for nothing";
  EXPECT_EQ(Layout(31).slab_bytes(), 4096u);
  EXPECT_EQ(Layout(33).slab_bytes(), 2 * 4096u);
  EXPECT_EQ(Layout(33).slab_offset(2), 4096u + 2 * 2 * 4096u);
  EXPECT_EQ(Layout(33).page_bytes(), 4096u + 3 * 2 * 4096u);
  EXPECT_EQ(Layout(33).bytes_per_token(), 2u * 2 * 3 * 2 * 33);
}

TEST(KvLayoutTest, SlabsOfBytesHoldThemAll) {
  for (const uint64_t bytes : {1, 63, 64, 65, 4095, 4096, 4097, 100'000}) {
    const KvLayout layout = KvLayout::OfBytes(2, bytes, 16);
    EXPECT_GE(layout.slab_payload_bytes(), bytes);
    EXPECT_LT(layout.slab_payload_bytes(), bytes + 64) << bytes;
  }
}

TEST(KvLayoutTest, NumbersInFilesAreThoseOfTheFormat) {
  EXPECT_EQ(static_cast<int>(Codec::kRaw), 0);
  EXPECT_EQ(static_cast<int>(Codec::kLossless), 1);
  EXPECT_EQ(static_cast<int>(Codec::kInt8), 2);
  EXPECT_EQ(static_cast<int>(Codec::kCacheGen), 3);
  EXPECT_EQ(static_cast<int>(Codec::kKvQuant3), 4);
  EXPECT_EQ(static_cast<int>(NumericPath::kUnknown), 0);
  EXPECT_EQ(static_cast<int>(NumericPath::kBf16Dot), 1);
  EXPECT_EQ(static_cast<int>(NumericPath::kF32Fma), 2);
  EXPECT_EQ(static_cast<int>(NumericPath::kF32), 3);
  EXPECT_EQ(static_cast<int>(NumericPath::kBf16Tensor), 4);
  EXPECT_EQ(static_cast<int>(NumericPath::kBf16Amx), 5);
}

}  // namespace
}  // namespace kvcake
