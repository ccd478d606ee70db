#include "bench/runahead_cell.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "bench/emulated_ranks_testing.h"
#include "bench/harness.h"

namespace kvcake::bench {
namespace {

using testing::HasSubstr;

Partition Halves() { return EvenPartition(1024, 2); }

std::vector<MethodResult> Results() {
  return {{.method = {.name = "single"}, .ttft_s = {6, 4, 5}},
          {.method = {"tsp", RankMethod::kTsp, Halves()},
           .ttft_s = {3, 4, 5},
           .bound_s = {2.5},
           .sent_bytes = 3'000'000},
          {.method = {"kvr", RankMethod::kChain, Halves()},
           .ttft_s = {2, 4, 2.5},
           .bound_s = {2, 1, 3},
           .sent_bytes = 1'000'000}};
}

const CellNames kNames{
    .setting = "real", .model = "m", .attention = "dense", .tokens = 1024, .ranks = 2};

TEST(RunaheadCellTest, TheTableHoldsEachMethodAgainstSingleAndTsp) {
  testing::internal::CaptureStdout();
  PrintCell(kNames, Results());
  const std::string table = testing::internal::GetCapturedStdout();
  EXPECT_THAT(table, HasSubstr("   1024     1  single    5.000   1.50x        -       -     1.00x "
                               "   0.80x       0.0"));
  EXPECT_THAT(table, HasSubstr("   1024     2     tsp    4.000   1.67x    2.500   60.0%     1.25x "
                               "   1.00x       3.0"));
  EXPECT_THAT(table, HasSubstr("   1024     2     kvr    2.500   2.00x    2.000   25.0%     2.00x "
                               "   1.60x       1.0"));
  EXPECT_THAT(table, HasSubstr("ideal    2.500 s, and of dense quadratic attention alone 1.875 s"));
}

TEST(RunaheadCellTest, TheJsonHasEachFigureByItsName) {
  auto rows = nlohmann::ordered_json::array();
  std::vector<MethodResult> results = Results();
  results.push_back({.method = {"zigzag", RankMethod::kZigzag, Halves()}, .ttft_s = {3}});
  AddJson(kNames, results, &rows);
  ASSERT_EQ(rows.size(), 4u);
  EXPECT_EQ(rows[0]["ranks"], 1);
  EXPECT_EQ(rows[0]["ttft_s"], 5);
  EXPECT_EQ(rows[0]["bound_s"], 5) << "of one process its time";
  EXPECT_EQ(rows[2], nlohmann::ordered_json::parse(R"({
      "setting": "real", "model": "m", "tokens": 1024, "ranks": 2, "method": "kvr",
      "attention": "dense", "bounds": [0, 512, 1024], "ttft_s": 2.5, "bound_s": 2.0,
      "sent_bytes": 1000000, "repeats": [2.0, 4.0, 2.5]})"));
  EXPECT_TRUE(rows[3]["bound_s"].is_null()) << "it was not measured";
}

TEST(RunaheadCellTest, TheBaselinesAreEvenParts) {
  const std::vector<RankMethodPlan> plans = PlansWith({.bounds = {0, 640, 1024}});
  ASSERT_EQ(plans.size(), 4u);
  EXPECT_EQ(plans[0].name, "tsp");
  EXPECT_EQ(plans[0].partition.bounds, Halves().bounds);
  EXPECT_EQ(plans[1].name, "zigzag");
  EXPECT_EQ(plans[1].partition.bounds, EvenPartition(1024, 4).bounds);
  EXPECT_EQ(plans[2].name, "kvr-e");
  EXPECT_EQ(plans[2].partition.bounds, Halves().bounds);
  EXPECT_EQ(plans[3].name, "kvr");
  EXPECT_EQ(plans[3].partition.bounds, (std::vector<int>{0, 640, 1024}));
}

// The slowest rank without exchange computes no longer than the whole takes with it, and something
// is sent but by one process. Links are never early: what is sent takes its time.
TEST(RunaheadCellTest, ACellMeasuresEveryMethodAndItsBound) {
  constexpr int kTokens = 1024;
  EmulatedRanks ranks(SmallRanks(/*ranks=*/2, /*link_bytes_per_s=*/1e9));
  const auto prompt = RandomPrompt(kTokens, ranks.trial().vocab_size(), 1);
  const auto results =
      MeasureCell(ranks.trial(), PlansWith(Halves()), prompt, {.repeats = 2, .bound_repeats = 1});
  ASSERT_TRUE(results) << results.error().message;
  ASSERT_EQ(results->size(), 5u);
  for (const MethodResult& result : *results) {
    const std::string& name = result.method.name;
    EXPECT_EQ(result.ttft_s.size(), 2u) << name;
    const bool single = name == "single";
    EXPECT_EQ(result.bound_s.size(), single ? 0u : 1u) << name;
    EXPECT_EQ(result.sent_bytes > 0, !single) << name;
    if (name != "tsp") continue;
    // Half of the keys and values are waited for, as many bytes as these.
    const double wait_s = kTokens / 2 * (1 << 16) / 1e9;
    EXPECT_GE(result.ttft_s[0], wait_s);
  }
}

}  // namespace
}  // namespace kvcake::bench
