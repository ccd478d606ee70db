#include "bench/simulate_summary.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace kvcake::bench {
namespace {

using testing::ElementsAre;

const EmulatedProfile kProfile{.name = "p", .max_positions = 32768, .b = 1e-5};

// A scenario that a single tier has all of, whose rates are known and stay.
Scenario Known(uint64_t seed, int chunks) {
  Scenario s;
  s.seed = seed;
  s.profile = &kProfile;
  s.chunks = chunks;
  s.tiers = {{.chunk_s = 0.1, .held = std::vector<bool>(chunks, true)}};
  return s;
}

ScenarioResult Took(double cake_s, double published_s = 2, double compute_s = 4, double load_s = 5,
                    double static_s = 8) {
  return {.cake_s = cake_s,
          .published_s = published_s,
          .compute_s = compute_s,
          .load_s = load_s,
          .static_s = static_s,
          .bound_s = 1};
}

TEST(SimulateSummaryTest, AClassHasTheFiguresOfItsScenarios) {
  const std::vector<ScenarioRow> rows = {{Known(11, 32), Took(1.25, 2, 1, 4, 4)},
                                         {Known(12, 32), Took(2, 4, 8, 4, 8)},
                                         {Known(13, 64), Took(1.6, 4, 8, 2, 8)}};
  const std::vector<SimulateClass> classes = Classify(rows);
  ASSERT_EQ(classes.size(), 2u) << "and all";
  const SimulateClass& known = classes[0];
  EXPECT_EQ(known.name, "known, all stored, from 4K");
  EXPECT_EQ(known.count, 3);
  EXPECT_EQ(known.least_seed, 12u);
  EXPECT_DOUBLE_EQ(known.efficiency.mean, (0.8 + 0.5 + 0.625) / 3);
  EXPECT_EQ(known.efficiency.median, 0.625);
  EXPECT_EQ(known.efficiency.min, 0.5);
  EXPECT_EQ(known.efficiency.max, 0.8);
  EXPECT_EQ(known.against_better.max, 1.25);
  EXPECT_EQ(known.against_better.median, 0.8);
  EXPECT_EQ(known.against_better.min, 0.5);
  EXPECT_DOUBLE_EQ(known.published, (0.5 + 0.25 + 0.25) / 3);
  EXPECT_DOUBLE_EQ(known.fixed, (0.25 + 0.125 + 0.125) / 3);
}

TEST(SimulateSummaryTest, EachScenarioIsInTheClassesThatItsNameSays) {
  std::vector<ScenarioRow> rows;
  const auto add = [&](int chunks) -> Scenario& {
    rows.push_back({Known(rows.size() + 1, chunks), Took(1 + 0.1 * rows.size())});
    return rows.back().scenario;
  };
  const auto change = [&](Change of, Shape shape) -> Scenario& {
    Scenario& s = add(32);
    s.change = of;
    s.shape = shape;
    return s;
  };
  add(32);                                  // 1
  add(31);                                  // 2
  add(16);                                  // 3
  add(15);                                  // 4
  add(16).present = 0.5;                    // 5
  add(32).compute_jitter = 0.1;             // 6
  add(32).knowledge = Knowledge::kNoisy;    // 7
  add(32).knowledge = Knowledge::kStale;    // 8
  add(32).knowledge = Knowledge::kWarmUp;   // 9
  add(32).knowledge = Knowledge::kNothing;  // 10
  {
    Scenario& several = add(32);  // 11
    several.tiers.push_back(several.tiers[0]);
  }
  change(Change::kShare, Shape::kStep);                                  // 12
  change(Change::kShare, Shape::kStep).present = 0.5;                    // 13
  change(Change::kLink, Shape::kStep);                                   // 14
  change(Change::kLink, Shape::kRamp).present = 0.5;                     // 15
  change(Change::kBoth, Shape::kZero).knowledge = Knowledge::kStale;     // 16
  change(Change::kCompute, Shape::kRamp).knowledge = Knowledge::kNoisy;  // 17
  std::vector<std::string> classes;
  for (const SimulateClass& c : Classify(rows)) {
    classes.push_back(fmt::format("{}: {}, {}", c.name, c.count, c.least_seed));
  }
  EXPECT_THAT(classes, ElementsAre("known, all stored, from 4K: 1, 1",
                                   "known, all stored, from 2K: 2, 3", "known, holes: 1, 5",
                                   "noisy: 2, 7", "stale fit: 1, 8", "first run: 2, 10",
                                   "share: 1, 12", "  step: 1, 12", "link changes: 2, 15",
                                   "  step: 1, 14", "  ramp: 1, 15", "compute changes: 1, 17",
                                   "  ramp: 1, 17", "changes, stale or first run: 1, 16",
                                   "several tiers: 1, 11", "short prompts: 1, 4", "all: 17, 17"));
}

TEST(SimulateSummaryTest, TheWorstComeFirstAndShortPromptsNever) {
  const std::vector<ScenarioRow> rows = {{Known(1, 32), Took(2, 2, 1, 4)},     // twice the better
                                         {Known(2, 8), Took(9, 2, 1, 1)},      // short
                                         {Known(3, 32), Took(4, 2, 8, 9)},     // a fourth
                                         {Known(4, 32), Took(1.25, 2, 9, 1)},  // an eighth more
                                         {Known(5, 32), Took(1, 2, 3, 4)}};
  EXPECT_THAT(LeastEfficient(rows, 2), ElementsAre(2, 0));
  EXPECT_THAT(LeastEfficient(rows, 9), ElementsAre(2, 0, 3, 4));
  EXPECT_THAT(WorstAgainstBetter(rows, 3), ElementsAre(0, 3, 2));
}

TEST(SimulateSummaryTest, FiguresAreInJsonByTheirNames) {
  const SimulateClass c{
      .name = "noisy",
      .count = 7,
      .efficiency =
          {.mean = 1, .median = 2, .p1 = 3, .p5 = 4, .p95 = 5, .p99 = 6, .min = 7, .max = 8},
      .against_better = {.mean = 9},
      .least_seed = 10,
      .published = 11,
      .fixed = 12};
  EXPECT_EQ(ToJson(c), nlohmann::ordered_json::parse(R"({
      "class": "noisy", "scenarios": 7,
      "efficiency": {"mean": 1.0, "median": 2.0, "p1": 3.0, "p5": 4.0, "p95": 5.0, "p99": 6.0,
                     "min": 7.0, "max": 8.0},
      "against_better": {"mean": 9.0, "median": 0.0, "p1": 0.0, "p5": 0.0, "p95": 0.0,
                         "p99": 0.0, "min": 0.0, "max": 0.0},
      "least_seed": 10, "efficiency_published": 11.0, "efficiency_static_split": 12.0})"));
  auto row = ToJson(ScenarioRow{Known(6, 16), Took(1.25, 2, 4, 5, 8)});
  EXPECT_EQ(row["scenario"], Known(6, 16).Describe());
  row.erase("scenario");
  EXPECT_EQ(row, nlohmann::ordered_json::parse(R"({
      "seed": 6, "cake_s": 1.25, "cake_published_s": 2.0, "compute_s": 4.0, "load_s": 5.0,
      "static_split_s": 8.0, "bound_s": 1.0, "efficiency": 0.8, "against_better": 0.3125})"));
}

// From the last number down to 0.
Percentiles OfNumbersUpTo(int last) {
  std::vector<double> values;
  for (int i = last; i >= 0; --i) values.push_back(i);
  return PercentilesOf(values);
}

TEST(SimulateSummaryTest, PercentilesAreOfTheSortedValues) {
  const Percentiles p = OfNumbersUpTo(100);
  EXPECT_EQ(p.median, 50);
  EXPECT_EQ(p.p5, 5);
  EXPECT_EQ(p.p99, 99);
  EXPECT_EQ(p.min, 0);
  EXPECT_EQ(p.max, 100);
  EXPECT_EQ(p.mean, 50);
}

TEST(SimulateSummaryTest, PercentilesNearTheEndsAreThoseValues) {
  const Percentiles p = OfNumbersUpTo(1000);
  EXPECT_EQ(p.p1, 10);
  EXPECT_EQ(p.p5, 50);
  EXPECT_EQ(p.p95, 950);
  EXPECT_EQ(p.p99, 990);
}

}  // namespace
}  // namespace kvcake::bench
