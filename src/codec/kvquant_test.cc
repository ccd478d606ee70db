#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "codec/codec_testing.h"
#include "codec/kvquant_rotation.h"
#include "codec/kvquant_tables.h"

namespace kvcake {
namespace {

using ::testing::HasSubstr;

constexpr KvLayout kKvQuantLayout = {
    .layers = 1, .kv_heads = 2, .head_dim = 64, .chunk_tokens = 128};

const CodecRow& KvQuantRow() { return *FindCodec(Codec::kKvQuant3); }

std::unique_ptr<LayerCodec> MakeKvQuant(const KvLayout& layout) {
  const auto tables = *NaturalTables(KvQuantRow(), layout);
  return MakeCodec(Codec::kKvQuant3, {.layout = layout, .tables = &tables}).value();
}

std::vector<std::byte> KvQuantPart(const LayerCodec& codec, int64_t position,
                                   const std::vector<uint16_t>& slab) {
  std::vector<std::byte> part(codec.part_bytes_max());
  part.resize(codec.Encode({.layer = 0, .position = position}, slab, part).value());
  return part;
}

std::vector<uint16_t> KvQuantThereAndBack(const LayerCodec& codec, int64_t position,
                                          const std::vector<uint16_t>& slab) {
  std::vector<uint16_t> decoded(slab.size());
  EXPECT_TRUE(codec.Decode({.layer = 0, .position = position}, KvQuantPart(codec, position, slab),
                           decoded));
  return decoded;
}

double RelativeRms(std::span<const uint16_t> was, std::span<const uint16_t> is) {
  double squares = 0, errors = 0;
  for (size_t i = 0; i < was.size(); ++i) {
    const double a = Bf16ToF32(was[i]), b = Bf16ToF32(is[i]);
    squares += a * a;
    errors += (a - b) * (a - b);
  }
  return std::sqrt(errors / squares);
}

// They are kept as they are, and those of a model are unlike all others.
TEST(KvQuant, APromptsFirstTokensSayNothingOfTheOthers) {
  auto slab = NaturalSlab(kKvQuantLayout, 100);
  const auto fitted = [&] {
    const KvSample sample{.layout = kKvQuantLayout,
                          .positions = {0},
                          .inverse_frequencies = {},
                          .slab = [&](size_t, int) -> std::span<const uint16_t> { return slab; }};
    return KvQuantRow().fit(sample)[0];
  };
  const auto change = [&](int token) {
    for (int head = 0; head < 2 * kKvQuantLayout.kv_heads; ++head) {
      const size_t row = static_cast<size_t>(head) * kKvQuantLayout.chunk_tokens + token;
      for (int c = 0; c < kKvQuantLayout.head_dim; ++c) {
        slab[row * kKvQuantLayout.head_dim + c] = NumberToBf16(static_cast<float>(1000 + c));
      }
    }
  };
  const CodecTables before = fitted();
  for (int token = 0; token < kKvQuantFirstTokens; ++token) change(token);
  EXPECT_TRUE(fitted() == before);
  change(kKvQuantFirstTokens);
  EXPECT_FALSE(fitted() == before);
}

TEST(KvQuant, TakesAtMostThreePointSevenBits) {
  for (const int heads : {2, 8}) {
    KvLayout layout = kKvQuantLayout;
    layout.kv_heads = heads;
    const auto codec = MakeKvQuant(layout);
    const auto slab = NaturalSlab(layout, 1);
    const auto part = KvQuantPart(*codec, layout.chunk_tokens, slab);
    EXPECT_LE(8.0 * static_cast<double>(part.size()) / static_cast<double>(slab.size()), 3.7);
  }
}

// Keys that are the same before RoPE at every token differ after it; by channel they have no
// spread before it, which three bits keep nearly as they are.
TEST(KvQuant, KeysAreQuantizedBeforeRope) {
  const KvLayout& layout = kKvQuantLayout;
  const uint64_t tokens = layout.chunk_tokens, half = layout.head_dim / 2;
  std::vector<float> frequencies;
  for (uint64_t i = 0; i < half; ++i) frequencies.push_back(1.f / static_cast<float>(1 + i));
  const auto slab_at = [&](int64_t position) {
    const auto angles = KvQuantRotation(frequencies, tokens).At(position);
    auto slab = NaturalSlab(layout, 1);
    for (uint64_t i = 0; i < layout.plane_elements() / 2; ++i) {
      const uint64_t row = i / half, c = i % half, angle = row % tokens * half + c;
      const auto x = static_cast<float>(1 + c), y = static_cast<float>(2 + row / tokens);
      const float cosine = angles.cosines[angle], sine = angles.sines[angle];
      slab[row * 2 * half + c] = NumberToBf16(x * cosine - y * sine);
      slab[row * 2 * half + half + c] = NumberToBf16(y * cosine + x * sine);
    }
    return slab;
  };
  const std::vector<uint16_t> first = slab_at(0), later = slab_at(5000);
  const KvSample sample{.layout = layout,
                        .positions = {0, 5000},
                        .inverse_frequencies = frequencies,
                        .slab = [&](size_t chunk, int) -> std::span<const uint16_t> {
                          return chunk == 0 ? first : later;
                        }};
  const auto tables = KvQuantRow().fit(sample)[0];
  const auto codec = MakeCodec(Codec::kKvQuant3, {.layout = layout, .tables = &tables}).value();
  const auto slab = slab_at(700);
  const uint64_t keys = layout.plane_elements();
  const auto right = KvQuantThereAndBack(*codec, 700, slab);
  EXPECT_LT(RelativeRms(std::span(slab).first(keys), std::span(right).first(keys)), 0.01);
  const auto elsewhere = KvQuantThereAndBack(*codec, 900, slab);
  EXPECT_GT(RelativeRms(std::span(slab).first(keys), std::span(elsewhere).first(keys)), 0.05);
}

TEST(KvQuant, ThreeBitsKeepNaturalNumbers) {
  const auto codec = MakeKvQuant(kKvQuantLayout);
  const auto slab = NaturalSlab(kKvQuantLayout, 100);  // which the tables were fitted to
  const auto decoded = KvQuantThereAndBack(*codec, 128, slab);
  const uint64_t plane = kKvQuantLayout.plane_elements();
  EXPECT_LT(RelativeRms(std::span(slab).subspan(plane), std::span(decoded).subspan(plane)), 0.2);
}

TEST(KvQuant, ThePromptsFirstTokensAreAsTheyWere) {
  const auto codec = MakeKvQuant(kKvQuantLayout);
  const auto slab = NaturalSlab(kKvQuantLayout, 3);
  const auto decoded = KvQuantThereAndBack(*codec, 0, slab);
  const uint64_t row = kKvQuantLayout.head_dim, head = row * kKvQuantLayout.chunk_tokens;
  for (uint64_t at = 0; at < slab.size(); at += head) {
    const auto first = [&](const std::vector<uint16_t>& of) {
      return std::vector(of.begin() + static_cast<int64_t>(at),
                         of.begin() + static_cast<int64_t>(at + kKvQuantFirstTokens * row));
    };
    EXPECT_EQ(first(decoded), first(slab));
  }
  EXPECT_GT(KvQuantPart(*codec, 0, slab).size(), KvQuantPart(*codec, 128, slab).size());
}

// One number in a hundred may be anything.
TEST(KvQuant, OutliersAreKept) {
  const auto codec = MakeKvQuant(kKvQuantLayout);
  auto slab = NaturalSlab(kKvQuantLayout, 3);
  const uint64_t plane = kKvQuantLayout.plane_elements();
  for (uint64_t i = 0; i < plane; i += 120) slab[plane + i] = NumberToBf16(37);
  const auto decoded = KvQuantThereAndBack(*codec, 128, slab);
  for (uint64_t i = 0; i < plane; i += 120) EXPECT_EQ(decoded[plane + i], slab[plane + i]);
}

TEST(KvQuant, WhatCannotBeAPartIsCorrupt) {
  const auto codec = MakeKvQuant(kKvQuantLayout);
  const auto part = KvQuantPart(*codec, 0, NaturalSlab(kKvQuantLayout, 1));
  std::vector<uint16_t> decoded(2 * kKvQuantLayout.plane_elements());
  const auto fails = [&](size_t at, uint16_t value) {
    auto damaged = part;
    std::memcpy(damaged.data() + at, &value, sizeof(value));
    const auto status = codec->Decode({.layer = 0, .position = 0}, damaged, decoded);
    return !status && status.error().code == ErrorCode::kCorrupt;
  };
  const size_t keys = 4 * 128, outliers = 2 * 128 * 64 / 100, values = keys + 704;
  EXPECT_FALSE(fails(0, 0));
  EXPECT_TRUE(fails(0, 0x7f80)) << "an offset";
  EXPECT_TRUE(fails(2 * 255, 0xffc0)) << "a scale";
  for (const size_t plane : {keys, values}) {
    EXPECT_TRUE(fails(plane, 0xffff)) << "an index beyond the plane";
    EXPECT_TRUE(fails(plane + 2 * (outliers - 1), 0)) << "an index before the last one";
    EXPECT_TRUE(fails(plane + 2 * outliers, 0x7f80)) << "an outlier";
  }
  EXPECT_TRUE(fails(part.size() - 2, 0x7f80)) << "a first token";
  EXPECT_FALSE(codec->Decode({.layer = 0, .position = 128}, part, decoded))
      << "a part of another position";
}

TEST(KvQuant, WhatIsTooLargeIsRefused) {
  const auto codec = MakeKvQuant(kKvQuantLayout);
  std::vector<std::byte> part(codec->part_bytes_max());
  for (const uint16_t bad : {0x7e00, 0xfe80, 0x7f80, 0x7fc0}) {
    auto slab = NaturalSlab(kKvQuantLayout, 1);
    slab[12345] = bad;
    const auto bytes = codec->Encode({}, slab, part);
    ASSERT_FALSE(bytes);
    EXPECT_EQ(bytes.error().code, ErrorCode::kUnsupported);
    EXPECT_THAT(bytes.error().message, HasSubstr("kvquant3"));
  }
}

TEST(KvQuant, TablesThatAreWrongAreCorrupt) {
  const auto good = *NaturalTables(KvQuantRow(), kKvQuantLayout);
  const auto fails = [&](size_t number, float value) {
    CodecTables tables = good;
    std::memcpy(tables.body.data() + number * sizeof(value), &value, sizeof(value));
    const auto parsed = ParseKvQuant(tables);
    return !parsed && parsed.error().code == ErrorCode::kCorrupt;
  };
  const size_t offsets = 32, scales = offsets + 128, centroids = scales + 128;
  EXPECT_TRUE(fails(0, NAN));
  EXPECT_TRUE(fails(offsets, INFINITY));
  EXPECT_TRUE(fails(scales, 0));
  EXPECT_TRUE(fails(scales + 1, -1));
  EXPECT_TRUE(fails(centroids, 100)) << "out of order";
  EXPECT_TRUE(fails(centroids + 15, -100)) << "out of order";
  EXPECT_EQ(KvQuantBody(ParseKvQuant(good).value()), good.body);
}

}  // namespace
}  // namespace kvcake
