#include "runahead/partition.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace kvcake {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string ErrorOf(std::string_view text, int tokens, int ranks) {
  const auto parsed = ParsePartition(text, tokens, ranks);
  return parsed ? "" : parsed.error().message;
}

TEST(PartitionTest, EvenPartsDifferByAToken) {
  EXPECT_THAT(EvenPartition(10, 4).bounds, ElementsAre(0, 2, 5, 7, 10));
  for (int ranks = 1; ranks <= 9; ++ranks) {
    for (int tokens = ranks; tokens < 50; ++tokens) {
      const Partition even = EvenPartition(tokens, ranks);
      ASSERT_TRUE(CheckPartition(even, tokens, ranks));
      for (int i = 0; i < ranks; ++i) {
        EXPECT_GE(even.size(i), tokens / ranks);
        EXPECT_LE(even.size(i), tokens / ranks + 1);
      }
    }
  }
}

TEST(PartitionTest, FlagsAreSharesOrTokens) {
  EXPECT_THAT(ParsePartition("0.35,0.25,0.2,0.2", 1000, 4)->bounds,
              ElementsAre(0, 350, 600, 800, 1000));
  EXPECT_THAT(ParsePartition("4096,3072,2048", 9216, 3)->bounds, ElementsAre(0, 4096, 7168, 9216));
  EXPECT_THAT(ParsePartition("0.333,0.333,0.333", 900, 3)->bounds, ElementsAre(0, 300, 600, 900));
  EXPECT_THAT(ErrorOf("0.33,0.33,0.33", 900, 3), "");
  EXPECT_THAT(ErrorOf("0.34,0.34,0.33", 900, 3), "");
  EXPECT_THAT(ParsePartition("1", 900, 1)->bounds, ElementsAre(0, 900));
  EXPECT_THAT(ParsePartition("1,1,1", 3, 3)->bounds, ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(ParsePartition("2,2,1", 5, 3)->bounds, ElementsAre(0, 2, 4, 5));
  EXPECT_THAT(ParsePartition("0.999,0.001", 4, 2)->bounds, ElementsAre(0, 3, 4));
  EXPECT_EQ(FormatPartition(*ParsePartition("4096,3072,2048", 9216, 3)), "4096,3072,2048");
}

TEST(PartitionTest, WrongFlagsSayWhy) {
  EXPECT_THAT(ErrorOf("0.5,0.4", 100, 2), HasSubstr("the shares sum to 0.9, not 1"));
  EXPECT_THAT(ErrorOf("60,30", 100, 2), HasSubstr("the tokens sum to 90, the prompt has 100"));
  EXPECT_THAT(ErrorOf("60,50", 100, 2), HasSubstr("the tokens sum to 110"));
  EXPECT_THAT(ErrorOf("60,40", 100, 3), HasSubstr("2 parts for 3 ranks"));
  EXPECT_THAT(ErrorOf("60,,40", 100, 3), HasSubstr("\"\" is not a number"));
  EXPECT_THAT(ErrorOf("60,40,", 100, 2), HasSubstr("\"\" is not a number"));
  EXPECT_THAT(ErrorOf("", 100, 1), HasSubstr("\"\" is not a number"));
  EXPECT_THAT(ErrorOf("60,x", 100, 2), HasSubstr("\"x\" is not a number"));
  EXPECT_THAT(ErrorOf("1e999,1", 100, 2), HasSubstr("is not a number"));
  EXPECT_THAT(ErrorOf("nan,1", 100, 2), HasSubstr("is not a number"));
  EXPECT_THAT(ErrorOf("1e30,1", 100, 2), HasSubstr("the tokens sum to"));
  EXPECT_THAT(ErrorOf("100,0", 100, 2), HasSubstr("above 0"));
  EXPECT_THAT(ErrorOf("-1,101", 100, 2), HasSubstr("above 0"));
  EXPECT_THAT(ErrorOf("60.5,39.5", 100, 2), HasSubstr("neither a share nor a whole number"));
  EXPECT_THAT(ErrorOf("0.5,0.5", 1, 2), HasSubstr("1 tokens are fewer than 2 ranks"));
  EXPECT_THAT(ErrorOf("60,30", 100, 2), HasSubstr("partition \"60,30\""));
}

TEST(PartitionTest, WrongBoundsSayWhy) {
  EXPECT_TRUE(CheckPartition({{0, 3, 10}}, 10, 2));
  EXPECT_THAT(CheckPartition({{0, 3, 10}}, 10, 3).error().message, HasSubstr("3 ranks"));
  for (const Partition& partition : {Partition{{0, 3, 9}}, Partition{{1, 3, 10}}}) {
    const Status wrong = CheckPartition(partition, 10, 2);
    ASSERT_FALSE(wrong);
    EXPECT_THAT(wrong.error().message, HasSubstr("from 0 to 10"));
  }
  EXPECT_THAT(CheckPartition({{0, 3, 3, 10}}, 10, 3).error().message, HasSubstr("rank 1"));
  EXPECT_FALSE(CheckPartition({}, 10, 2));
}

TEST(PartitionTest, RoundingLeavesEveryRankItsPart) {
  std::mt19937 rng(2);
  for (int i = 0; i < 2000; ++i) {
    const int ranks = 1 + static_cast<int>(rng() % 8),
              tokens = ranks + static_cast<int>(rng() % 99);
    std::vector<double> bounds{0};
    for (int r = 1; r < ranks; ++r) bounds.push_back(static_cast<double>(rng() % 1000) / 10);
    std::sort(bounds.begin(), bounds.end());
    bounds.push_back(tokens);
    const Partition rounded = RoundedPartition(bounds);
    ASSERT_TRUE(CheckPartition(rounded, tokens, ranks));
    const int step = 1 + static_cast<int>(rng() % 9);
    if (!HasMultiples(tokens, ranks, step)) continue;
    const Partition stepped = OnMultiples(rounded, step);
    ASSERT_TRUE(CheckPartition(stepped, tokens, ranks));
    for (int r = 1; r < ranks; ++r) EXPECT_EQ(stepped.begin(r) % step, 0);
  }
  EXPECT_THAT(OnMultiples({{0, 299, 450, 900}}, 100).bounds, ElementsAre(0, 300, 500, 900));
  EXPECT_TRUE(HasMultiples(129, 2, 128));
  EXPECT_FALSE(HasMultiples(128, 2, 128));
}

TEST(PartitionTest, FractionsComeBack) {
  const Partition partition{{0, 350, 600, 800, 1000}};
  EXPECT_EQ(PartitionOf(partition.fractions(), 1000), partition);
  EXPECT_THAT(PartitionOf(partition.fractions(), 100).bounds, ElementsAre(0, 35, 60, 80, 100));
}

}  // namespace
}  // namespace kvcake
