#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "codec/cachegen_tables.h"
#include "codec/codec_testing.h"

namespace kvcake {
namespace {

using ::testing::HasSubstr;

constexpr KvLayout kCacheGenLayout = {
    .layers = 1, .kv_heads = 2, .head_dim = 64, .chunk_tokens = 128};

const CodecRow& CacheGenRow() { return *FindCodec(Codec::kCacheGen); }

std::unique_ptr<LayerCodec> MakeCacheGen(const CodecTables& tables) {
  return MakeCodec(Codec::kCacheGen, {.layout = kCacheGenLayout, .tables = &tables}).value();
}

double CacheGenBits(const LayerCodec& codec, const std::vector<uint16_t>& slab) {
  std::vector<std::byte> part(codec.part_bytes_max());
  return 8.0 * static_cast<double>(codec.Encode({}, slab, part).value()) /
         static_cast<double>(slab.size());
}

// A number is off by half a step, which is up to 2^(1/16) (and a bf16's rounding) longer than its
// token's largest number needs.
TEST(CacheGen, NoNumberIsOffByMoreThanHalfAStep) {
  const auto tables = *NaturalTables(CacheGenRow(), kCacheGenLayout);
  const auto planes = ParseCacheGen(tables).value();
  const auto codec = MakeCacheGen(tables);
  const auto slab = NaturalSlab(kCacheGenLayout, 5);
  std::vector<std::byte> part(codec->part_bytes_max());
  const uint64_t bytes = codec->Encode({}, slab, part).value();
  std::vector<uint16_t> decoded(slab.size());
  ASSERT_TRUE(codec->Decode({}, std::span(part).first(bytes), decoded));
  for (uint64_t plane = 0; plane < 2; ++plane) {
    for (int token = 0; token < kCacheGenLayout.chunk_tokens; ++token) {
      float most = 0;
      const auto each = [&](const auto& visit) {
        for (int head = 0; head < kCacheGenLayout.kv_heads; ++head) {
          const size_t row = static_cast<size_t>(head) * kCacheGenLayout.chunk_tokens + token;
          const size_t first =
              plane * kCacheGenLayout.plane_elements() + row * kCacheGenLayout.head_dim;
          for (int c = 0; c < kCacheGenLayout.head_dim; ++c) visit(first + c);
        }
      };
      each([&](size_t i) { most = std::max(most, std::abs(Bf16ToF32(slab[i]))); });
      const float step = most / static_cast<float>(planes[plane].most) * 1.055f;
      each([&](size_t i) {
        const float was = Bf16ToF32(slab[i]), is = Bf16ToF32(decoded[i]);
        ASSERT_LE(std::abs(is - was), 0.5f * step + std::abs(is) / 256) << i;
      });
    }
  }
}

TEST(CacheGen, LevelsAreSmallerOneByOne) {
  const auto slabs =
      std::vector{NaturalSlab(kCacheGenLayout, 100), NaturalSlab(kCacheGenLayout, 101)};
  const KvSample sample{.layout = kCacheGenLayout,
                        .positions = {0, 128},
                        .inverse_frequencies = {},
                        .slab = [&](size_t chunk, int) { return std::span(slabs[chunk]); }};
  double before = 16;
  const auto levels = CacheGenRow().fit(sample);
  ASSERT_GE(levels.size(), 2u);
  for (size_t i = 0; i < levels.size(); ++i) {
    EXPECT_EQ(levels[i].level, static_cast<int>(i) + 1);
    const double bits = CacheGenBits(*MakeCacheGen(levels[i]), slabs[0]);
    EXPECT_LT(bits, before);
    before = bits;
  }
  EXPECT_LT(before, 4);
}

// Whatever the tables have not seen takes at most what part_bytes_max says.
TEST(CacheGen, NoiseTakesNoMoreThanItSays) {
  const auto codec = MakeCacheGen(*NaturalTables(CacheGenRow(), kCacheGenLayout));
  std::vector<uint16_t> slab(2 * kCacheGenLayout.plane_elements());
  for (size_t i = 0; i < slab.size(); ++i) slab[i] = i % 2 == 0 ? 0x3f80 : 0xbf80;
  EXPECT_LE(CacheGenBits(*codec, slab) * static_cast<double>(slab.size()) / 8,
            static_cast<double>(codec->part_bytes_max()));
}

TEST(CacheGen, WhatTheTablesDoNotReachIsRefused) {
  const auto codec = MakeCacheGen(*NaturalTables(CacheGenRow(), kCacheGenLayout));
  std::vector<std::byte> part(codec->part_bytes_max());
  for (const uint16_t bad : {0x7000, 0x7e80, 0x7f80, 0xff80, 0x7fc0}) {
    auto slab = NaturalSlab(kCacheGenLayout, 1);
    slab[777] = bad;
    const auto bytes = codec->Encode({}, slab, part);
    ASSERT_FALSE(bytes);
    EXPECT_EQ(bytes.error().code, ErrorCode::kUnsupported);
    EXPECT_THAT(bytes.error().message, HasSubstr("cachegen"));
  }
}

// A lane without symbols has nothing but its state.
TEST(CacheGen, AStateThatDoesNotEndWhereAllDoIsCorrupt) {
  const KvLayout layout{.layers = 1, .kv_heads = 1, .head_dim = 1, .chunk_tokens = 1};
  const auto tables = *NaturalTables(CacheGenRow(), layout);
  const auto codec = MakeCodec(Codec::kCacheGen, {.layout = layout, .tables = &tables}).value();
  std::vector<std::byte> part(codec->part_bytes_max());
  part.resize(codec->Encode({}, NaturalSlab(layout, 1), part).value());
  std::vector<uint16_t> decoded(2);
  ASSERT_TRUE(codec->Decode({}, part, decoded));
  for (size_t lane = 1; lane < kRansLanes; ++lane) {
    auto damaged = part;
    damaged[64 + lane * sizeof(uint32_t)] ^= std::byte{1};
    EXPECT_FALSE(codec->Decode({}, damaged, decoded)) << lane;
  }
}

// What is read again is written again, byte for byte.
TEST(CacheGen, BytesThatFillUpAreZeros) {
  const KvLayout layout{.layers = 1, .kv_heads = 1, .head_dim = 16, .chunk_tokens = 1};
  const auto tables = *NaturalTables(CacheGenRow(), layout);
  const auto codec = MakeCodec(Codec::kCacheGen, {.layout = layout, .tables = &tables}).value();
  std::vector<std::byte> part(codec->part_bytes_max());
  part.resize(codec->Encode({}, NaturalSlab(layout, 1), part).value());
  std::vector<uint16_t> decoded(32);
  const size_t steps_end = 2, states_end = 64 + kRansLanes * sizeof(uint32_t);
  ASSERT_LT(states_end, part.size());
  ASSERT_EQ(part.back(), std::byte{0});
  for (const size_t at : {steps_end, size_t{63}, part.size() - 1}) {
    auto damaged = part;
    damaged[at] ^= std::byte{1};
    const auto status = codec->Decode({}, damaged, decoded);
    ASSERT_FALSE(status) << at;
    EXPECT_EQ(status.error().code, ErrorCode::kCorrupt);
  }
}

// What follows a wrong state or word is noise, which leaves other words or states in the end. The
// few that decode are another part's: a word may stand for a symbol with as many slots as its own.
TEST(CacheGen, OtherStatesOrWordsAreCorrupt) {
  const auto codec = MakeCacheGen(*NaturalTables(CacheGenRow(), kCacheGenLayout));
  std::vector<std::byte> part(codec->part_bytes_max());
  part.resize(codec->Encode({}, NaturalSlab(kCacheGenLayout, 1), part).value());
  std::vector<uint16_t> decoded(2 * kCacheGenLayout.plane_elements());
  int damages = 0, decodes = 0;
  for (size_t at = 2 * kCacheGenLayout.chunk_tokens; at < part.size(); at += 29) {
    auto damaged = part;
    damaged[at] ^= std::byte{0x10};
    const auto status = codec->Decode({}, damaged, decoded);
    ++damages;
    decodes += status.has_value();
    if (!status) {
      EXPECT_EQ(status.error().code, ErrorCode::kCorrupt);
    }
  }
  EXPECT_GT(damages, 500);
  EXPECT_LT(decodes, damages / 50);
}

TEST(CacheGen, TablesThatAreWrongAreCorrupt) {
  const auto good = *NaturalTables(CacheGenRow(), kCacheGenLayout);
  const auto fails = [&](size_t at, uint16_t value) {
    CodecTables tables = good;
    std::memcpy(tables.body.data() + at, &value, sizeof(value));
    const auto planes = ParseCacheGen(tables);
    return !planes && planes.error().code == ErrorCode::kCorrupt;
  };
  EXPECT_TRUE(fails(0, 0)) << "no levels";
  EXPECT_TRUE(fails(0, 16)) << "more than a table has";
  EXPECT_TRUE(fails(2, 0)) << "a step of 0";
  EXPECT_TRUE(fails(2, 0x7f80)) << "an infinite step";
  EXPECT_TRUE(fails(4, 0)) << "a level that never occurs";
  EXPECT_TRUE(fails(6, 4096)) << "more than 4096 in all";
  // Planes have nothing else amiss.
  const auto why = [](int most, std::vector<uint16_t> counts) {
    const CacheGenPlane plane{.most = most, .first_step = 0x3c00, .counts = std::move(counts)};
    const auto planes = ParseCacheGen({.codec = Codec::kCacheGen,
                                       .layers = 1,
                                       .kv_heads = 1,
                                       .head_dim = 1,
                                       .body = CacheGenBody({plane, plane})});
    return planes ? "" : planes.error().message;
  };
  EXPECT_EQ(why(1, {1, 4094, 1}), "");
  EXPECT_THAT(why(1, {0, 4095, 1}), HasSubstr("a level never occurs"));
  EXPECT_THAT(why(1, {1, 4093, 1}), HasSubstr("not 4096 in all"));
  EXPECT_THAT(why(0, {4096}), HasSubstr("too many levels"));
  std::vector<uint16_t> many(2 * (kCacheGenMost + 1) + 1, 1);
  many[0] += static_cast<uint16_t>(kRansTotal - many.size());
  EXPECT_THAT(why(kCacheGenMost + 1, many), HasSubstr("too many levels"));
  EXPECT_EQ(CacheGenBody(ParseCacheGen(good).value()), good.body);
}

}  // namespace
}  // namespace kvcake
