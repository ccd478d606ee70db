#include "codec/int8.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>

#include "codec/codec_testing.h"

namespace kvcake {
namespace {

using ::testing::HasSubstr;

std::vector<uint16_t> ThereAndBack(const KvLayout& layout, const std::vector<uint16_t>& slab) {
  const auto codec = *MakeCodec(Codec::kInt8, {.layout = layout});
  std::vector<std::byte> part(codec->part_bytes_max());
  const auto bytes = codec->Encode({}, slab, part);
  EXPECT_TRUE(bytes) << bytes.error().message;
  std::vector<uint16_t> decoded(slab.size());
  EXPECT_TRUE(codec->Decode({}, std::span(part).first(bytes.value_or(0)), decoded));
  return decoded;
}

TEST(Int8, TakesAtMostEightBitsAndTwoFifths) {
  for (const int head_dim : {64, 128}) {
    const KvLayout layout{.layers = 1, .kv_heads = 2, .head_dim = head_dim, .chunk_tokens = 128};
    const double values = 2.0 * static_cast<double>(layout.plane_elements());
    const auto bytes =
        static_cast<double>((*MakeCodec(Codec::kInt8, {.layout = layout}))->part_bytes_max());
    EXPECT_LE(8 * bytes / values, 8.4);
  }
}

// Files that were written long ago have these lengths.
TEST(Int8, ABlockHas128TokensAtMost) {
  const auto bytes = [](int tokens) {
    const KvLayout layout{.layers = 1, .kv_heads = 1, .head_dim = 64, .chunk_tokens = tokens};
    return (*MakeCodec(Codec::kInt8, {.layout = layout}))->part_bytes_max();
  };
  // Two numbers for each channel of a block, one for each token, then the bytes of K and of V.
  EXPECT_EQ(bytes(128), 2 * 2 * 64 + 2 * 128 + 2 * 64 * 128);
  EXPECT_EQ(bytes(129), 2 * (2 * 2 * 64) + RoundUpToPart(2 * 129) + 2 * 64 * 129);
}

// A key is off by half a step of its channel in its block, a value by half a step of its token;
// both steps may be 1/128 longer than they need be, and both are rounded to bf16.
TEST(Int8, NoNumberIsOffByMoreThanHalfAStep) {
  const KvLayout layout{.layers = 1, .kv_heads = 2, .head_dim = 24, .chunk_tokens = 300};
  const int block_tokens = 100;  // three of at most 128
  const auto slab = NaturalSlab(layout, 5), decoded = ThereAndBack(layout, slab);
  const auto close = [&](size_t i, float step) {
    const float was = Bf16ToF32(slab[i]), is = Bf16ToF32(decoded[i]);
    ASSERT_LE(std::abs(is - was), 0.51f * step * (1 + 1.f / 128) + std::abs(is) / 256) << i;
  };
  for (int head = 0; head < layout.kv_heads; ++head) {
    for (int c = 0; c < layout.head_dim; ++c) {
      for (int first = 0; first < layout.chunk_tokens; first += block_tokens) {
        float least = INFINITY, most = -INFINITY;
        const auto at = [&](int token) {
          return (static_cast<size_t>(head) * layout.chunk_tokens + token) * layout.head_dim + c;
        };
        for (int token = first; token < first + block_tokens; ++token) {
          least = std::min(least, Bf16ToF32(slab[at(token)]));
          most = std::max(most, Bf16ToF32(slab[at(token)]));
        }
        for (int token = first; token < first + block_tokens; ++token) {
          close(at(token), (most - least) / 255);
        }
      }
    }
  }
  const size_t rows = static_cast<size_t>(layout.kv_heads) * layout.chunk_tokens;
  for (size_t row = 0; row < rows; ++row) {
    const size_t begin = layout.plane_elements() + row * layout.head_dim;
    float most = 0;
    for (int c = 0; c < layout.head_dim; ++c) {
      most = std::max(most, std::abs(Bf16ToF32(slab[begin + c])));
    }
    for (int c = 0; c < layout.head_dim; ++c) close(begin + c, most / 127);
  }
}

TEST(Int8, AChannelOfItsOwnScaleKeepsIt) {
  const KvLayout layout{.layers = 1, .kv_heads = 1, .head_dim = 2, .chunk_tokens = 64};
  std::vector<uint16_t> slab(2 * layout.plane_elements());
  for (int token = 0; token < 64; ++token) {
    slab[2 * token] = NumberToBf16(1000.f + static_cast<float>(token));
    slab[2 * token + 1] = NumberToBf16(1e-6f * static_cast<float>(token));
  }
  const auto decoded = ThereAndBack(layout, slab);
  for (int token = 0; token < 64; ++token) {
    EXPECT_NEAR(Bf16ToF32(decoded[2 * token]), 1000 + token, 4);
    EXPECT_NEAR(Bf16ToF32(decoded[2 * token + 1]), 1e-6 * token, 3e-7);
  }
}

TEST(Int8, WhatIsTooLargeIsRefused) {
  const KvLayout layout{.layers = 1, .kv_heads = 1, .head_dim = 20, .chunk_tokens = 16};
  const auto codec = *MakeCodec(Codec::kInt8, {.layout = layout});
  std::vector<std::byte> part(codec->part_bytes_max());
  const auto good = NaturalSlab(layout, 1);
  for (const uint16_t bad : {0x7e80, 0xfe80, 0x7f80, 0xff80, 0x7fc0, 0xffff}) {
    for (size_t at = 0; at < good.size(); at += 7) {
      auto slab = good;
      slab[at] = bad;
      const auto bytes = codec->Encode({}, slab, part);
      ASSERT_FALSE(bytes) << at;
      EXPECT_EQ(bytes.error().code, ErrorCode::kUnsupported);
      EXPECT_THAT(bytes.error().message, HasSubstr("int8"));
    }
  }
  auto apart = good;  // as far apart as may be
  apart[0] = 0x7e7f;
  apart[20] = 0xfe7f;
  ASSERT_TRUE(codec->Encode({}, apart, part));
  std::vector<uint16_t> decoded(good.size());
  ASSERT_TRUE(codec->Decode({}, part, decoded));
  for (const uint16_t value : decoded) EXPECT_TRUE(std::isfinite(Bf16ToF32(value)));
}

TEST(Int8, AStepThatIsNotFiniteIsCorrupt) {
  const KvLayout layout{.layers = 1, .kv_heads = 1, .head_dim = 32, .chunk_tokens = 32};
  const auto codec = *MakeCodec(Codec::kInt8, {.layout = layout});
  std::vector<std::byte> part(codec->part_bytes_max());
  ASSERT_TRUE(codec->Encode({}, NaturalSlab(layout, 1), part));
  std::vector<uint16_t> decoded(2 * layout.plane_elements());
  const size_t last = 2 * 32 * 2 + 32 * 2 - 1;  // of the last token's step, the upper byte
  for (const size_t at : {size_t{1}, size_t{65}, last}) {
    auto damaged = part;
    damaged[at] = std::byte{0x7f};
    damaged[at - 1] |= std::byte{0x80};
    const auto status = codec->Decode({}, damaged, decoded);
    ASSERT_FALSE(status) << at;
    EXPECT_EQ(status.error().code, ErrorCode::kCorrupt);
  }
}

}  // namespace
}  // namespace kvcake
