#include "cake/load_order.h"

#include <gtest/gtest.h>

#include <random>

namespace kvcake {
namespace {

TEST(LoadOrderTest, NamesGoBothWays) {
  for (const LoadOrder order : {LoadOrder::kSrpt, LoadOrder::kFifo, LoadOrder::kFair}) {
    EXPECT_EQ(LoadOrderFromName(LoadOrderName(order)), order);
  }
  EXPECT_FALSE(LoadOrderFromName("lifo"));
}

TEST(LoadOrderTest, RanksByWhatTheOrderSays) {
  const LoadClaimant old_long{.remaining_s = 2, .opened_s = 4, .serial = 1, .last_read = 7};
  const LoadClaimant new_short{.remaining_s = 1, .opened_s = 5, .serial = 2, .last_read = 3};
  const auto first = [&](LoadOrder order, double aging) {
    return LoadRank(order, old_long, aging) < LoadRank(order, new_short, aging) ? 1 : 2;
  };
  EXPECT_EQ(first(LoadOrder::kSrpt, 0.25), 2);
  EXPECT_EQ(first(LoadOrder::kSrpt, 1.5), 1);
  EXPECT_EQ(first(LoadOrder::kFifo, 0.25), 1);
  EXPECT_EQ(first(LoadOrder::kFair, 0.25), 2);
}

TEST(LoadOrderTest, WhoHasWaitedLongEnoughIsOvertakenByNobodyNew) {
  std::mt19937_64 rng(1);
  std::uniform_real_distribution<double> some(0, 10);
  for (int i = 0; i < 1000; ++i) {
    const double aging = 0.01 + some(rng), remaining_s = some(rng);
    const LoadClaimant waits{.remaining_s = remaining_s};
    const LoadClaimant comes{.remaining_s = some(rng), .opened_s = remaining_s / aging + 1e-6};
    EXPECT_LT(LoadRank(LoadOrder::kSrpt, waits, aging), LoadRank(LoadOrder::kSrpt, comes, aging));
  }
}

}  // namespace
}  // namespace kvcake
