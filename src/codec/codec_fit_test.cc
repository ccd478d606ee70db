// What the tables of a codec say of caches whose numbers are known.
#include <gtest/gtest.h>

#include <cmath>

#include "base/bf16.h"
#include "codec/cachegen_tables.h"
#include "codec/codec.h"
#include "codec/kvquant_tables.h"

namespace kvcake {
namespace {

// Numbers by (chunk, K or V, token, channel) of each layer's one head.
using Numbers = std::function<float(int chunk, int plane, int token, int channel)>;

std::vector<CodecTables> Fit(Codec codec, const KvLayout& layout, std::vector<int64_t> positions,
                             const Numbers& numbers) {
  std::vector<std::vector<uint16_t>> slabs(positions.size());
  for (size_t chunk = 0; chunk < slabs.size(); ++chunk) {
    for (int plane = 0; plane < 2; ++plane) {
      for (int token = 0; token < layout.chunk_tokens; ++token) {
        for (int channel = 0; channel < layout.head_dim; ++channel) {
          slabs[chunk].push_back(
              F32ToBf16(numbers(static_cast<int>(chunk), plane, token, channel)));
        }
      }
    }
  }
  return FindCodec(codec)->fit(
      {.layout = layout,
       .positions = std::move(positions),
       .inverse_frequencies = {},
       .slab = [&](size_t chunk, int) -> std::span<const uint16_t> { return slabs[chunk]; }});
}

constexpr KvLayout kFitLayout = {.layers = 1, .kv_heads = 1, .head_dim = 16, .chunk_tokens = 64};
// Apart enough to stay a centroid each.
constexpr float kLevels[] = {-4, -3, -1, -0.5, 0.5, 1, 2, 5};
constexpr double kLevelsVariance = 7.0625;
constexpr float kWider[] = {-5, -3, -1, -0.5, 0.5, 1, 2, 6};
constexpr double kWiderVariance = 9.5625;

KvQuantLayer FitKvQuantLayer(const Numbers& numbers) {
  const auto tables = Fit(Codec::kKvQuant3, kFitLayout, {100, 300, 164, 500}, numbers);
  return ParseKvQuant(tables.at(0)).value().layers.at(0);
}

TEST(KvQuantFitTest, KeysAreMeasuredByChannelAndValuesByToken) {
  const KvQuantLayer fit = FitKvQuantLayer([](int, int plane, int token, int channel) {
    const int kept = plane == 0 ? channel : token % 16, other = plane == 0 ? token : channel;
    return static_cast<float>(kept) + static_cast<float>(1 + kept % 2) * kLevels[other % 8];
  });
  for (int channel = 0; channel < kFitLayout.head_dim; ++channel) {
    EXPECT_FLOAT_EQ(fit.key_offsets[channel], static_cast<float>(channel));
    EXPECT_NEAR(fit.key_scales[channel], (1 + channel % 2) * std::sqrt(kLevelsVariance), 1e-5);
  }
  for (const auto& centroids : fit.centroids) {
    for (int i = 0; i < kKvQuantCentroids; ++i) {
      EXPECT_NEAR(centroids[i], kLevels[i] / std::sqrt(kLevelsVariance), 1e-5);
    }
  }
}

// The error of a number is its scale times that of its centroid.
TEST(KvQuantFitTest, SquaredScalesAreWeights) {
  const KvQuantLayer fit = FitKvQuantLayer([](int, int plane, int token, int channel) {
    const int kept = plane == 0 ? channel : token, other = plane == 0 ? token : channel;
    return kept % 2 == 0 ? kLevels[other % 8] : 4 * kWider[other % 8];
  });
  const double weight = kLevelsVariance, wider_weight = 16 * kWiderVariance;
  for (const auto& centroids : fit.centroids) {
    for (int i = 0; i < kKvQuantCentroids; ++i) {
      const double at = kLevels[i] / std::sqrt(kLevelsVariance);
      const double wider_at = kWider[i] / std::sqrt(kWiderVariance);
      EXPECT_NEAR(centroids[i], (weight * at + wider_weight * wider_at) / (weight + wider_weight),
                  1e-5);
    }
  }
}

TEST(KvQuantFitTest, OutliersDoNotDrawCentroidsToThem) {
  const KvQuantLayer fit = FitKvQuantLayer([](int chunk, int, int token, int) {
    // Two of the 256 of each channel.
    if (chunk == 0 && (token == 0 || token == 7)) return token == 0 ? -8.0f : 8.0f;
    return kLevels[token % 8];
  });
  const auto& centroids = fit.centroids[0];
  for (int i = 0; i < kKvQuantCentroids; ++i) {
    EXPECT_NEAR((centroids[i] - centroids[0]) / (centroids[7] - centroids[0]),
                (kLevels[i] - kLevels[0]) / (kLevels[7] - kLevels[0]), 1e-5);
  }
}

TEST(CacheGenFitTest, NumbersAreCountedByChannelInAllChunks) {
  KvLayout layout = kFitLayout;
  layout.layers = 16;
  const auto levels = Fit(Codec::kCacheGen, layout, {0, 64}, [](int chunk, int, int t, int c) {
    if (chunk == 1) return c == 0 ? 4.0f : 0.0f;
    return c < 8 ? 8.0f : t < 32 ? -8.0f : 0.0f;
  });
  ASSERT_EQ(levels.size(), 2u);
  for (int level = 1; level <= 2; ++level) {
    const auto planes = ParseCacheGen(levels[level - 1]).value();
    ASSERT_EQ(planes.size(), 32u);
    for (int i = 0; i < 32; ++i) {
      SCOPED_TRACE(fmt::format("level {} layer {} plane {}", level, i / 2, i % 2));
      const CacheGenPlane& plane = planes[i];
      const bool keys = i % 2 == 0, fine = keys ? i / 2 < 8 : i / 2 < 1;
      EXPECT_EQ(plane.most, level == 1 ? (fine ? 15 : 7) : (keys ? 7 : 6));
      // Room is left for chunks with steps 16 times as large.
      const double largest = Bf16ToF32(CacheGenSteps(plane.first_step)[kStepCodes - 1 - 4 * 16]);
      EXPECT_NEAR(largest * plane.most / 8, 1, 0.01);
      const int symbols = 2 * plane.most + 1;
      const auto share = [&](int channel, int number) {
        return plane.counts[channel * symbols + plane.most + number] / double{kRansTotal};
      };
      // A channel's 128 tokens, and 24 shared out as the whole plane's: 576, 1,216, 256 of 2,048.
      const double top = 24 * 576 / 2048.0, zero = 24 * 1216 / 2048.0, bottom = 24 * 256 / 2048.0;
      for (const auto& [channel, tops, zeros, bottoms] : std::initializer_list<std::array<int, 4>>{
               {0, 128, 0, 0}, {5, 64, 64, 0}, {9, 0, 96, 32}}) {
        EXPECT_NEAR(share(channel, plane.most), (tops + top) / 152, 0.01) << channel;
        EXPECT_NEAR(share(channel, 0), (zeros + zero) / 152, 0.01) << channel;
        EXPECT_NEAR(share(channel, -plane.most), (bottoms + bottom) / 152, 0.01) << channel;
      }
    }
  }
}

TEST(CacheGenFitTest, TablesThatEndEarlyOrLateAreCorrupt) {
  KvLayout layout = kFitLayout;
  layout.head_dim = 4;
  CodecTables tables =
      Fit(Codec::kCacheGen, layout, {0}, [](int, int, int t, int) { return t * 1.0f; })[0];
  EXPECT_TRUE(ParseCacheGen(tables));
  const auto body = tables.body;
  for (size_t bytes = 0; bytes < body.size(); ++bytes) {
    tables.body.assign(body.begin(), body.begin() + static_cast<int64_t>(bytes));
    tables.body.shrink_to_fit();
    EXPECT_EQ(ParseCacheGen(tables).error().code, ErrorCode::kCorrupt) << bytes;
  }
  tables.body = body;
  tables.body.push_back(std::byte{1});
  EXPECT_EQ(ParseCacheGen(tables).error().code, ErrorCode::kCorrupt);
}

TEST(CacheGenFitTest, EveryChannelHasAllItsLevelsAndNoMore) {
  CodecTables tables = Fit(Codec::kCacheGen, kFitLayout, {0},
                           [](int, int, int t, int) { return static_cast<float>(t); })[0];
  // The last level of the last channel: one less, then none at all.
  std::byte* const last = tables.body.data() + tables.body.size() - 2;
  for (const int count : {static_cast<int>(last[0]) - 1, 0}) {
    last[0] = static_cast<std::byte>(count);
    last[1] = std::byte{0};
    EXPECT_EQ(ParseCacheGen(tables).error().code, ErrorCode::kCorrupt);
  }
}

}  // namespace
}  // namespace kvcake
