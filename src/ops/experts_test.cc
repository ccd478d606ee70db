#include "ops/experts.h"

#include <gmock/gmock.h>

#include <cmath>
#include <limits>
#include <map>

#include "ops/paths_testing.h"

namespace kvcake {
namespace {

using testing::ElementsAre;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// What each row has, by expert.
std::vector<std::map<int, float>> ByRow(const ExpertRoutes& routes, int experts, int64_t rows) {
  std::vector<std::map<int, float>> all(rows);
  for (int expert = 0; expert < experts; ++expert) {
    const auto rows_of = routes.rows(expert);
    EXPECT_EQ(routes.weights(expert).size(), rows_of.size());
    EXPECT_TRUE(std::ranges::is_sorted(rows_of));
    for (size_t i = 0; i < rows_of.size(); ++i) {
      EXPECT_TRUE(all[rows_of[i]].emplace(expert, routes.weights(expert)[i]).second);
    }
  }
  return all;
}

TEST(ExpertRoutesTest, RowsGoToTheirLikeliestByTheSoftmax) {
  ThreadPool pool(2);
  const Compute compute(pool);
  std::mt19937 rng(1);
  for (const bool normalized : {false, true}) {
    for (const auto& [experts, per_row] : {std::pair(8, 2), {128, 8}, {5, 5}, {3, 1}, {1, 1}}) {
      ExpertRoutes routes({experts, per_row, normalized}, 40);
      for (const int64_t rows : {40, 1, 17, 0}) {  // one after the other
        const auto logits = RandomFloats(rng, rows * experts, 4.0f);
        routes.Set(compute, logits.data(), rows);
        const auto chosen = ByRow(routes, experts, rows);
        for (int64_t row = 0; row < rows; ++row) {
          const std::span of_row(&logits[row * experts], experts);
          std::vector<double> shares;
          double sum = 0, chosen_sum = 0;
          for (const float logit : of_row) sum += shares.emplace_back(std::exp(double{logit}));
          std::vector<double> sorted = shares;
          std::ranges::sort(sorted, std::greater());
          for (int i = 0; i < per_row; ++i) chosen_sum += sorted[i];
          ASSERT_EQ(chosen[row].size(), static_cast<size_t>(per_row));
          for (const auto& [expert, weight] : chosen[row]) {
            EXPECT_GE(shares[expert], sorted[per_row - 1]);
            EXPECT_NEAR(weight, shares[expert] / (normalized ? chosen_sum : sum), 1e-6);
          }
        }
      }
    }
  }
}

TEST(ExpertRoutesTest, OfEqualOnesTheFirstAreTaken) {
  ThreadPool pool(1);
  const Compute compute(pool);
  ExpertRoutes routes({.experts = 5, .per_row = 3, .normalized = true}, 2);
  routes.Set(compute, std::vector<float>{1, 2, 1, 2, 1, 3, 3, 3, 3, 3}.data(), 2);
  EXPECT_THAT(routes.rows(0), ElementsAre(0, 1));
  EXPECT_THAT(routes.rows(1), ElementsAre(0, 1));
  EXPECT_THAT(routes.rows(2), ElementsAre(1));
  EXPECT_THAT(routes.rows(3), ElementsAre(0));
  EXPECT_THAT(routes.rows(4), ElementsAre());
}

// Kernels do not ask what numbers are: garbage stays in its row.
TEST(ExpertRoutesTest, WhatIsNoNumberGoesToAsManyExperts) {
  ThreadPool pool(1);
  const Compute compute(pool);
  ExpertRoutes routes({.experts = 4, .per_row = 2, .normalized = true}, 5);
  const std::vector<float> logits = {kNan, 1, 2,         3,    1,          2,          kNan,
                                     3,    1, kInfinity, 2,    -kInfinity, -kInfinity, -kInfinity,
                                     1,    2, kNan,      kNan, kNan,       kNan};
  routes.Set(compute, logits.data(), 5);
  const auto chosen = ByRow(routes, 4, 5);
  for (const auto& row : chosen) EXPECT_EQ(row.size(), 2u);
  for (const int row : {0, 1, 2, 4}) {
    for (const auto& [expert, weight] : chosen[row]) EXPECT_TRUE(std::isnan(weight)) << row;
  }
  EXPECT_NEAR(chosen[3].at(3), 1 / (1 + std::exp(-1.0)), 1e-6);
}

using ExpertsTest = PathTest;
KVCAKE_EVERY_PATH(ExpertsTest);

TEST_P(ExpertsTest, RowsGoThereAndBack) {
  constexpr int64_t kRows = 37, kColumns = 48;
  ThreadPool pool(2);
  const Compute compute(pool, GetParam());
  std::mt19937 rng(2);
  const auto x = RandomFloats(rng, kRows * kColumns);
  const std::vector<float> ones(kColumns, 1.0f);
  const ActivationBuffer all(GetParam(), kRows, kColumns), taken(GetParam(), kRows, kColumns);
  RmsNorm(compute, x.data(), {.weight = ones.data(), .eps = 1e-5f}, all.Rows(kRows));
  std::vector<int32_t> rows;
  for (int32_t row = 1; row < kRows; row += 3) rows.push_back(row);
  const Activations out = taken.Rows(std::ssize(rows));
  TakeRows(compute, all.Rows(kRows), rows, out);
  for (int64_t i = 0; i < out.rows; ++i) {
    for (int64_t j = 0; j < kColumns; ++j) {
      ASSERT_EQ(ElementAt(GetParam(), out, i, j),
                ElementAt(GetParam(), all.Rows(kRows), rows[i], j));
    }
  }
  const auto weights = RandomFloats(rng, out.rows), added = RandomFloats(rng, out.rows * kColumns);
  std::vector<float> sum = x;
  AddRows(compute, added.data(), rows, weights, kColumns, sum.data());
  std::vector<float> want = x;
  for (size_t i = 0; i < rows.size(); ++i) {
    for (int64_t j = 0; j < kColumns; ++j) {
      want[rows[i] * kColumns + j] += weights[i] * added[i * kColumns + j];
    }
  }
  EXPECT_EQ(sum, want);
}

}  // namespace
}  // namespace kvcake
