#include "engine/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <vector>

namespace kvcake {
namespace {

const std::vector<float> kLogits = {0.0f, std::log(2.0f), std::log(4.0f), std::log(1.0f),
                                    std::log(8.0f)};  // probabilities 1/16 x {1, 2, 4, 1, 8}

std::map<int32_t, double> Shares(const SamplingParams& params) {
  std::map<int32_t, double> shares;
  constexpr int kDraws = 40000;
  for (int position = 0; position < kDraws; ++position) {
    shares[Sample(kLogits, params, position)] += 1.0 / kDraws;
  }
  return shares;
}

TEST(SamplerTest, GreedyTakesTheLowestOfEquals) {
  EXPECT_EQ(Sample(kLogits, {}, 7), 4);
  EXPECT_EQ(Sample(std::vector<float>{1, 3, 3, 2}, {}, 0), 1);
}

TEST(SamplerTest, FollowsTheDistribution) {
  const auto shares = Shares({.temperature = 1, .seed = 3});
  const double expected[] = {1, 2, 4, 1, 8};
  for (int i = 0; i < 5; ++i) EXPECT_NEAR(shares.at(i), expected[i] / 16, 0.01) << i;
}

TEST(SamplerTest, TemperatureSharpens) {
  const auto shares = Shares({.temperature = 0.5, .seed = 3});  // weights squared
  EXPECT_NEAR(shares.at(4), 64.0 / 86, 0.01);
}

TEST(SamplerTest, TopKAndTopPCutTheTail) {
  auto shares = Shares({.temperature = 1, .top_k = 2, .seed = 9});
  EXPECT_EQ(shares.size(), 2u);
  EXPECT_NEAR(shares.at(4), 8.0 / 12, 0.01);
  shares = Shares({.temperature = 1, .top_p = 0.6, .seed = 9});  // 8/16 is not enough, 12/16 is
  EXPECT_EQ(shares.size(), 2u);
  shares = Shares({.temperature = 1, .top_p = 0.5, .seed = 9});
  EXPECT_EQ(shares.size(), 1u);
}

TEST(SamplerTest, IsAFunctionOfSeedAndPosition) {
  const SamplingParams a{.temperature = 1, .seed = 1}, b{.temperature = 1, .seed = 2};
  int differs = 0;
  for (int position = 0; position < 100; ++position) {
    EXPECT_EQ(Sample(kLogits, a, position), Sample(kLogits, a, position));
    differs += Sample(kLogits, a, position) != Sample(kLogits, b, position);
  }
  EXPECT_GT(differs, 20);
}

TEST(SamplerTest, NanIsNeverChosen) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(Sample(std::vector<float>{nan, 1, nan, 2}, {}, 0), 3);
  EXPECT_EQ(Sample(std::vector<float>{nan, 1, nan, 2}, {.temperature = 1, .top_k = 1}, 0), 3);
  EXPECT_EQ(Sample(std::vector<float>{nan, nan}, {.temperature = 1}, 0), 0);
}

TEST(SamplerTest, RefusesSenselessParameters) {
  EXPECT_TRUE(Validate({}));
  EXPECT_FALSE(Validate({.temperature = -1}));
  EXPECT_FALSE(Validate({.temperature = std::nan("")}));
  EXPECT_FALSE(Validate({.top_k = -1}));
  EXPECT_FALSE(Validate({.top_p = 0}));
  EXPECT_FALSE(Validate({.top_p = 1.5}));
}

TEST(SamplerTest, LogProbabilityOfKnownWeights) {
  EXPECT_NEAR(LogProbability(kLogits, 4), std::log(0.5), 1e-6);
  EXPECT_NEAR(LogProbability(kLogits, 0), std::log(1.0 / 16), 1e-6);
}

}  // namespace
}  // namespace kvcake
