#include "codec/lossless.h"

#include <gtest/gtest.h>

#include "codec/codec_testing.h"

namespace kvcake {
namespace {

constexpr KvLayout kLayout = {.layers = 1, .kv_heads = 2, .head_dim = 64, .chunk_tokens = 128};

uint64_t PartBytes(const std::vector<uint16_t>& slab) {
  const auto codec = *MakeCodec(Codec::kLossless, {.layout = kLayout});
  std::vector<std::byte> part(codec->part_bytes_max());
  return codec->Encode({}, slab, part).value();
}

double BitsPerValue(const std::vector<uint16_t>& slab) {
  return 8.0 * static_cast<double>(PartBytes(slab)) / static_cast<double>(slab.size());
}

TEST(Lossless, NaturalNumbersTakeLessThanThreeQuarters) {
  EXPECT_LT(BitsPerValue(NaturalSlab(kLayout, 1)), 16 / 1.3);
}

TEST(Lossless, FewExponentsTakeFewBits) {
  std::vector<uint16_t> slab(2 * kLayout.plane_elements());
  EXPECT_LT(BitsPerValue(slab), 9.2) << "one exponent: a bit each";
  for (size_t i = 0; i < slab.size(); ++i) slab[i] = static_cast<uint16_t>(i % 3 << 7);
  EXPECT_LT(BitsPerValue(slab), 10.2);
  for (size_t i = 0; i < slab.size(); ++i) slab[i] = static_cast<uint16_t>(i % 7 << 7);
  EXPECT_LT(BitsPerValue(slab), 11.2);
  for (size_t i = 0; i < slab.size(); ++i) slab[i] = static_cast<uint16_t>(i % 15 << 7);
  EXPECT_LT(BitsPerValue(slab), 12.2);
}

TEST(Lossless, NoiseTakesHardlyMoreThanItDid) {
  EXPECT_LT(BitsPerValue(AnySlab(kLayout, 1)), 16.2);
}

// Reads of the first block's entry the width and how many escapes there are.
TEST(Lossless, EntriesThatAreWrongAreCorrupt) {
  const auto codec = *MakeCodec(Codec::kLossless, {.layout = kLayout});
  const auto slab = NaturalSlab(kLayout, 1);
  std::vector<std::byte> part(codec->part_bytes_max());
  part.resize(codec->Encode({}, slab, part).value());
  std::vector<uint16_t> decoded(slab.size());
  for (const size_t at : {15, 16, 17, 20, 23, 24, 31}) {
    for (const int value : {1, 5, 0x7f, 0xff}) {
      auto damaged = part;
      damaged[at] ^= std::byte(value);
      const auto status = codec->Decode({}, damaged, decoded);
      ASSERT_FALSE(status) << at;
      EXPECT_EQ(status.error().code, ErrorCode::kCorrupt);
    }
  }
  const auto why = [&](size_t at, int value) {
    auto damaged = part;
    damaged[at] = std::byte(value);
    const Status status = codec->Decode({}, damaged, decoded);
    return status ? "" : status.error().message;
  };
  // Refuses them before it looks anything up in the table, or behind the part.
  EXPECT_EQ(why(15, 5), "a part of codec lossless: a table is wider than 4 bits");
  EXPECT_EQ(why(23, 0xff), "a part of codec lossless: a block has more escapes than values");
}

}  // namespace
}  // namespace kvcake
