#include "model/position.h"

#include <gtest/gtest.h>

#include "base/bf16.h"

namespace kvcake {
namespace {

// Values computed independently in Python by the published formulas, in float32 where Hugging Face
// transformers has float32.
TEST(RopeTest, FrequenciesOfEveryKind) {
  RopeConfig rope;
  rope.theta = 500000.0;
  const auto expect = [&](int i, double want) {
    EXPECT_NEAR(RopeInverseFrequencies(rope, 64)[i], want, 5e-7 * want)
        << i;  // a few f32 roundings
  };
  expect(0, 1.0);
  expect(10, 0.016560440883040428);
  expect(31, 3.01385807688348e-06);
  rope.kind = RopeConfig::Kind::kLinear;
  rope.factor = 4.0;
  expect(10, 0.016560440883040428 / 4);
  rope.kind = RopeConfig::Kind::kLlama3;
  rope.factor = 32.0;
  rope.low_freq_factor = 1.0;
  rope.high_freq_factor = 4.0;
  rope.original_max_positions = 8192;
  expect(0, 1.0);
  expect(14, 0.0032114461064338684);
  expect(15, 0.0012905480504265697);
  expect(16, 0.00042955669247651487);
  expect(17, 9.70828819426613e-05);
  expect(18, 1.9461638657958247e-05);
  expect(31, 9.418306490260875e-08);
  rope.low_freq_factor = 2.0;
  rope.high_freq_factor = 8.0;
  rope.original_max_positions = 4096;
  expect(10, 0.016560440883040428);
  expect(11, 0.009506275430402753);
  expect(12, 0.003470716892828656);
  expect(15, 0.0021311195369119653 / 32);
}

// What transformers' yarn gives, in float32.
TEST(RopeTest, YarnsFrequencies) {
  RopeConfig rope = {
      .kind = RopeConfig::Kind::kYarn, .theta = 1e6, .factor = 4, .original_max_positions = 32768};
  const auto expect = [&](int head_dim, const std::vector<std::pair<int, double>>& wanted) {
    for (const auto& [i, want] : wanted) {
      EXPECT_NEAR(RopeInverseFrequencies(rope, head_dim)[i], want, 5e-7 * want) << i;
    }
  };
  expect(64, {{0, 1.0},
              {11, 0.00865964312106371},
              {12, 0.005154795479029417},
              {19, 9.128064994001761e-05},
              {20, 4.4456985051510856e-05},
              {31, 3.8498163235090033e-07}});
  rope = {.kind = RopeConfig::Kind::kYarn,
          .theta = 5e5,
          .factor = 8,
          .original_max_positions = 4096,
          .beta_fast = 16,
          .beta_slow = 2,
          .truncate = false};
  expect(64, {{9, 0.02495540864765644},
              {10, 0.013818805105984211},
              {13, 0.0015330638270825148},
              {14, 0.0004631972115021199},
              {31, 3.76732259610435e-07}});
  // Every pair of so small a head turns more often than either bound.
  rope = {.kind = RopeConfig::Kind::kYarn, .factor = 4, .original_max_positions = 100'000'000};
  expect(16, {{0, 1.0}, {7, 0.0003162277862429619}});
  rope.original_max_positions = 6;  // every pair turns less often than either bound
  expect(16, {{0, 1.0}, {1, 0.07905694097280502}, {7, 7.905694656074047e-05}});
  rope.original_max_positions = 256;
  rope.theta = 2;  // the upper bound is beyond the head
  expect(16, {{2, 0.8408964276313782}, {3, 0.7266185283660889}, {7, 0.38796907663345337}});
}

// What transformers' build_alibi_tensor gives, after its rounding to bf16.
TEST(AlibiTest, SlopesOfHeadsThatAreAPowerOfTwoAndNot) {
  const auto expect = [](int heads, const std::vector<float>& want) {
    std::vector<float> got = AlibiSlopes(heads);
    for (float& slope : got) slope = Bf16ToF32(F32ToBf16(slope));
    EXPECT_EQ(got, want) << heads;
  };
  expect(1, {0.00390625f});
  expect(8, {0.5f, 0.25f, 0.125f, 0.0625f, 0.03125f, 0.015625f, 0.0078125f, 0.00390625f});
  expect(6, {0.25f, 0.0625f, 0.015625f, 0.00390625f, 0.5f, 0.125f});
  const std::vector<float> falcon = AlibiSlopes(71);
  ASSERT_EQ(falcon.size(), 71u);
  EXPECT_EQ(Bf16ToF32(F32ToBf16(falcon[63])), 0.00390625f);
  EXPECT_EQ(Bf16ToF32(F32ToBf16(falcon[64])), 0.95703125f);
  EXPECT_EQ(Bf16ToF32(F32ToBf16(falcon[70])), 0.5703125f);
}

}  // namespace
}  // namespace kvcake
