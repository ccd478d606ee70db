#include "runahead/partition_analytic.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "runahead/chain_model.h"
#include "runahead/chain_testing.h"

namespace kvcake {
namespace {

using testing::ElementsAre;

double Ttft(const ChainCost& cost, const Partition& partition) {
  return PredictChain(cost, partition).ttft_s;
}

ChainCost EqualChain(int ranks, SliceTime time) {
  ChainCost cost;
  cost.ranks.assign(ranks, RankCost{.time = time});
  cost.layers = 8;
  cost.bytes_per_token_layer = 1000;
  return cost;
}

// The best of all partitions with bounds at multiples of `step`.
double LeastTtft(const ChainCost& cost, int tokens, int step) {
  double least_s = std::numeric_limits<double>::infinity();
  for (int x = step; x < tokens; x += step) {
    if (cost.ranks.size() == 2) least_s = std::min(least_s, Ttft(cost, {{0, x, tokens}}));
    if (cost.ranks.size() != 3) continue;
    for (int y = x + step; y < tokens; y += step) {
      least_s = std::min(least_s, Ttft(cost, {{0, x, y, tokens}}));
    }
  }
  return least_s;
}

TEST(AnalyticTest, CausalClosedFormByHand) {
  // Work a x + b x^2 / 2, with a = b and b = 2a here: work of 1 x + 0.01 x^2.
  const Partition got = BalancedPartition(EqualChain(4, {.b = 1, .a = 0.01}), 10000);
  const double a = 1, b = 0.02, n = 10000, work = a * n + b * n * n / 2;
  for (int i = 1; i < 4; ++i) {
    const double x = (-a + std::sqrt(a * a + 2 * b * (i / 4.0) * work)) / b;
    EXPECT_NEAR(got.bounds[i], x, 0.5 + 1e-6);
  }
  // Nothing but attention: x_1 of two is n / sqrt 2. None: even parts.
  EXPECT_THAT(BalancedPartition(EqualChain(2, {.a = 1}), 10000).bounds,
              ElementsAre(0, 7071, 10000));
  EXPECT_THAT(BalancedPartition(EqualChain(4, {.b = 1}), 100).bounds,
              ElementsAre(0, 25, 50, 75, 100));
}

TEST(AnalyticTest, PartsThatAllTakeTheFloorAreEven) {
  ChainCost cost =
      EqualChain(8, {.attention = SliceTime::Attention::kDense, .b = 1e-5, .floor = 0.1});
  cost.link = {.alpha_s = 1e-5, .bytes_per_s = 1e11};
  EXPECT_EQ(AnalyticPartition(cost, 1024).bounds, EvenPartition(1024, 8).bounds);
}

TEST(AnalyticTest, EqualRanksOnFreeLinksFinishTogether) {
  std::mt19937 rng(4);
  for (int i = 0; i < 300; ++i) {
    const int ranks = 2 + static_cast<int>(rng() % 7);
    ChainCost cost = RandomChain(rng, ranks);
    cost.link = {};
    for (RankCost& rank : cost.ranks) rank.speed = 1, rank.t0_s = 0;
    const int tokens = 20000;
    const Partition partition = BalancedPartition(cost, tokens);
    ASSERT_TRUE(CheckPartition(partition, tokens, ranks));
    const RankCost& one = cost.ranks[0];
    double least_s = std::numeric_limits<double>::infinity(), most_s = 0, token_s = 0;
    for (int r = 0; r < ranks; ++r) {
      const double x = partition.begin(r), c = partition.size(r);
      // A rank whose every token would be one too many has the least there is.
      if (c > 1) {
        least_s = std::min(least_s, one.SecondsFor(x, c));
        most_s = std::max(most_s, one.SecondsFor(x, c));
        token_s = std::max(token_s, one.SecondsFor(x + 1, c + 1) - one.SecondsFor(x, c));
      }
    }
    EXPECT_LE(most_s - least_s, 2 * token_s + 1e-9 * most_s) << "chain " << i;
  }
}

TEST(AnalyticTest, SpeedsGetTheirShare) {
  ChainCost cost = EqualChain(3, {.b = 1});
  cost.ranks[1].speed = 0.5;
  cost.ranks[2].t0_s = 10;
  // c, c / 2 and c - 10 are 490.
  EXPECT_THAT(BalancedPartition(cost, 490).bounds, ElementsAre(0, 200, 300, 490));
  ChainCost speeds = EqualChain(2, {.b = 1});
  speeds.ranks[1].speed = 0.5;
  EXPECT_THAT(BalancedPartition(speeds, 300).bounds, ElementsAre(0, 200, 300));
}

TEST(AnalyticTest, OfUnknownCostsPartsAreEven) {
  const ChainCost cost = EqualChain(4, {});
  EXPECT_EQ(BalancedPartition(cost, 1000), EvenPartition(1000, 4));
  EXPECT_EQ(AnalyticPartition(cost, 1000), EvenPartition(1000, 4));
  ChainCost some_speed = cost;
  some_speed.ranks[0].speed = 2;
  EXPECT_EQ(AnalyticPartition(some_speed, 1000), EvenPartition(1000, 4));
}

TEST(AnalyticTest, NoLinkSendsLongerThanRanksCompute) {
  ChainCost cost = EqualChain(2, {.b = 1});
  cost.link.bytes_per_s = cost.bytes_per_token() / 3;  // 3 s a token
  cost.link.alpha_s = 1;
  // The first computes x in x s and sends it in 8 + 3 x s; the last takes 400 - x.
  EXPECT_THAT(BalancedPartition(cost, 400).bounds, ElementsAre(0, 98, 400));
  // The second of three sends the first's messages, too: 16 and 20 / 10 are 18 s.
  cost = EqualChain(3, {.b = 1});
  cost.link = {.alpha_s = 1, .bytes_per_s = cost.bytes_per_token() * 10};
  EXPECT_THAT(BalancedPartition(cost, 38).bounds, ElementsAre(0, 18, 20, 38));
}

TEST(AnalyticTest, IsAPartitionAndNeverWorseThanEven) {
  std::mt19937 rng(5);
  for (int i = 0; i < 300; ++i) {
    const int ranks = 1 + static_cast<int>(rng() % 8);
    const int tokens = ranks + static_cast<int>(rng() % 20000);
    const ChainCost cost = RandomChain(rng, ranks);
    ASSERT_TRUE(CheckPartition(BalancedPartition(cost, tokens), tokens, ranks));
    const Partition partition = AnalyticPartition(cost, tokens);
    ASSERT_TRUE(CheckPartition(partition, tokens, ranks));
    EXPECT_LE(Ttft(cost, partition), Ttft(cost, EvenPartition(tokens, ranks)) * (1 + 1e-12));
  }
}

TEST(AnalyticTest, IsWithinTwoPercentOfAllPartitions) {
  std::mt19937 rng(6);
  for (int i = 0; i < 200; ++i) {
    const int ranks = 2 + i % 2;
    const int tokens = 2000 + static_cast<int>(rng() % 6000);
    const ChainCost cost = RandomChain(rng, ranks);
    const double got_s = Ttft(cost, AnalyticPartition(cost, tokens));
    const double above = got_s / LeastTtft(cost, tokens, ranks == 2 ? 8 : 64) - 1;
    EXPECT_LE(above, 0.02) << "chain " << i << " of " << ranks;
  }
}

TEST(AnalyticTest, ChunksUnlessTheyAreDear) {
  std::mt19937 rng(7);
  int chunked = 0, exact = 0;
  for (int i = 0; i < 200; ++i) {
    const int ranks = 2 + static_cast<int>(rng() % 5);
    const int tokens = ranks + static_cast<int>(rng() % 10000);
    const ChainCost cost = RandomChain(rng, ranks);
    const Partition wanted = AnalyticPartition(cost, tokens);
    const Partition got = ChunkedPartition(cost, wanted, 128);
    ASSERT_TRUE(CheckPartition(got, tokens, ranks));
    EXPECT_LE(Ttft(cost, got), Ttft(cost, wanted) * 1.01);
    bool multiples = true;
    for (int r = 1; r < ranks; ++r) multiples = multiples && got.begin(r) % 128 == 0;
    EXPECT_TRUE(multiples || got == wanted);
    ++(multiples ? chunked : exact);
  }
  EXPECT_GT(chunked, 20);
  EXPECT_GT(exact, 20);
}

TEST(BestRanksTest, ShortPromptsStayAloneAndLongOnesDoNot) {
  ChainCost cost = EqualChain(4, {.b = 1e-4, .a = 1e-8});
  for (RankCost& rank : cost.ranks) rank.t0_s = 0.05;
  EXPECT_EQ(BestRanks(cost, 500).partition.ranks(), 1);
  const RanksChoice choice = BestRanks(cost, 16384, {.chunk_tokens = 128});
  EXPECT_EQ(choice.partition.ranks(), 4);
  ASSERT_EQ(choice.ttft_by_ranks_s.size(), 4u);
  EXPECT_DOUBLE_EQ(choice.ttft_s, choice.ttft_by_ranks_s[3]);
  EXPECT_NEAR(choice.ttft_by_ranks_s[0], 1.6384 + 2.684, 1e-3) << "no t0 alone";
  EXPECT_EQ(BestRanks(cost, 3).partition.bounds, (std::vector{0, 3}));
  EXPECT_GT(BestRanks(cost, 4000).partition.ranks(), 1);
}

TEST(BestRanksTest, OnASlowLinkFewerOrNoneHelp) {
  ChainCost cost = EqualChain(4, {.b = 1e-4, .a = 1e-8});
  cost.link.bytes_per_s = cost.bytes_per_token() / 1e-1;  // a thousand tokens' compute a token
  EXPECT_EQ(BestRanks(cost, 2000).partition.ranks(), 1);
}

// What a full search predicts grows with the fifth power of the ranks: for these it took minutes.
TEST(BestRanksTest, ManyRanksAreSearchedAsFarAsEffortGoes) {
  ChainCost cost = EqualChain(64, {.b = 1e-4, .a = 1e-8});
  cost.layers = 32;
  cost.link = {.alpha_s = 1e-5, .bytes_per_s = 1e10};
  for (size_t i = 0; i < cost.ranks.size(); i += 3) cost.ranks[i].speed = 0.8;
  const RanksChoice choice = BestRanks(cost, 16384, {.chunk_tokens = 128});
  ASSERT_EQ(choice.ttft_by_ranks_s.size(), 64u);
  for (int ranks = 1; ranks <= 64; ++ranks) {
    const ChainCost some = cost.Last(ranks);
    const double balanced_s = Ttft(some, BalancedPartition(some, 16384));
    EXPECT_LE(choice.ttft_by_ranks_s[ranks - 1], balanced_s * 1.01) << ranks;
  }
}

TEST(BestRanksTest, MoreRanksMustBeWorthIt) {
  std::mt19937 rng(8);
  for (int i = 0; i < 50; ++i) {
    const ChainCost cost = RandomChain(rng, 4);
    const RanksChoice choice = BestRanks(cost, 5000, {.gain_min = 0.1});
    const auto& all = choice.ttft_by_ranks_s;
    const double least = *std::min_element(all.begin(), all.end());
    EXPECT_LE(choice.ttft_s, least * 1.1);
    for (int r = 0; r + 1 < choice.partition.ranks(); ++r) EXPECT_GT(all[r], least * 1.1);
  }
}

}  // namespace
}  // namespace kvcake
