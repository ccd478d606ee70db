#include "runahead/chain_cost.h"

#include <gtest/gtest.h>

#include "runahead/chain_testing.h"

namespace kvcake {
namespace {

TEST(ChainCostTest, ARanksTimeIsItsSlicesAndItsOwn) {
  const RankCost causal{.time = {.c0 = 1, .g = 0.1, .b = 2, .a = 3}, .t0_s = 5, .speed = 0.5};
  EXPECT_DOUBLE_EQ(causal.SecondsFor(10, 4), (5 + 1 + 1 + 8 + 3 * (80 + 16)) / 0.5);
  const RankCost dense{
      .time = {.attention = SliceTime::Attention::kDense, .c0 = 1, .b = 2, .a = 3, .floor = 100}};
  EXPECT_DOUBLE_EQ(dense.SecondsFor(10, 4), 1 + 8 + 3 * 4 * 14);
  EXPECT_DOUBLE_EQ(dense.SecondsFor(10, 1), 100) << "the floor";
}

TEST(ChainCostTest, TokensWithinIsTheInverse) {
  std::mt19937 rng(1);
  for (int i = 0; i < 1000; ++i) {
    const RankCost rank = RandomChain(rng, 1).ranks[0];
    const double prefix = LogUniform(rng, 1, 1e5), tokens = LogUniform(rng, 1, 1e5);
    const double seconds = rank.SecondsFor(prefix, tokens);
    const double within = rank.TokensWithin(prefix, seconds * (1 + 1e-12));
    EXPECT_GE(within, tokens * (1 - 1e-6));
    EXPECT_NEAR(rank.SecondsFor(prefix, within) / seconds, 1, 1e-9);
    EXPECT_EQ(rank.TokensWithin(prefix, rank.SecondsFor(prefix, 0) * (1 - 1e-9)), 0);
  }
  const RankCost linear{.time = {.b = 2}};
  EXPECT_DOUBLE_EQ(linear.TokensWithin(100, 10), 5);
}

TEST(ChainCostTest, OneRankAloneIsNoChain) {
  ChainCost cost;
  cost.ranks.assign(3, RankCost{.time = {.b = 1}, .t0_s = 7});
  EXPECT_EQ(cost.Last(2).ranks.size(), 2u);
  EXPECT_EQ(cost.Last(2).ranks[1].t0_s, 7);
  EXPECT_EQ(cost.Last(1).ranks[0].t0_s, 0);
  cost.ranks[2].speed = 0.5;  // the leader's
  EXPECT_EQ(cost.Last(1).ranks[0].speed, 0.5);
}

TEST(ChainCostTest, AProfileGivesEqualRanks) {
  const EmulatedProfile profile{
      .name = "x", .layers = 4, .kv_bytes_per_token = 800, .b = 2, .a = 1, .link_latency_s = 1};
  const ChainCost cost = ChainCostOf(profile, 3, 50);
  ASSERT_EQ(cost.ranks.size(), 3u);
  EXPECT_DOUBLE_EQ(cost.ranks[2].SecondsFor(5, 6), profile.SecondsFor(5, 6));
  EXPECT_DOUBLE_EQ(cost.bytes_per_token_layer, 200);
  EXPECT_DOUBLE_EQ(cost.bytes_per_token(), 800);
  EXPECT_DOUBLE_EQ(cost.link.SecondsFor(100), 3);
}

}  // namespace
}  // namespace kvcake
