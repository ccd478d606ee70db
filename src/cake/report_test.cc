#include "cake/report.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "cake/trace.h"

namespace kvcake {
namespace {

TEST(ReportTest, PoliciesHaveNames) {
  for (Policy policy : {Policy::kCake, Policy::kCompute, Policy::kLoad, Policy::kPublished}) {
    EXPECT_EQ(PolicyFromName(PolicyName(policy)), policy);
  }
  EXPECT_FALSE(PolicyFromName("both"));
}

TEST(ReportTest, JsonHasThePromisedNames) {
  RestoreReport report;
  report.tokens_loaded["disk"] = 256;
  report.bound_s = 0.5;
  report.SetActual(Seconds(1));
  const auto json = report.ToJson();
  for (const char* name : {"policy", "tokens_computed", "tokens_loaded", "tokens_reused",
                           "chunks_failed", "meeting_token", "bound_s", "efficiency", "reasons"}) {
    EXPECT_TRUE(json.contains(name)) << name;
  }
  EXPECT_EQ(json["policy"], "cake");
  EXPECT_EQ(json["tokens_loaded"]["disk"], 256);
  EXPECT_EQ(json["efficiency"], 0.5);
  EXPECT_TRUE(RestoreReport().ToJson()["tokens_loaded"].is_object());
}

TEST(ReportTest, JsonHasEachValueUnderItsName) {
  RestoreReport report;
  report.policy = Policy::kPublished;
  report.tokens_computed = 1;
  report.tokens_loaded = {{"disk", 2}, {"redis", 3}};
  report.tokens_reused = 4;
  report.chunks_failed = 5;
  report.lossy = "int8";
  report.chunks_mixed_path = 6;
  report.meeting_token = 7;
  report.bound_s = 8;
  report.efficiency = 9;
  report.predicted_s = 10;
  report.restored_s = 11;
  report.slices = 12;
  report.slice_error = 13;
  report.turns = 4;
  report.planning_s = 1;
  report.reasons = {"why"};
  report.timeline_dropped = 14;
  report.reasons_dropped = 15;
  EXPECT_EQ(report.ToJson(), (nlohmann::json{{"policy", "cake-published"},
                                             {"tokens_computed", 1},
                                             {"tokens_loaded", {{"disk", 2}, {"redis", 3}}},
                                             {"tokens_reused", 4},
                                             {"chunks_failed", 5},
                                             {"lossy", "int8"},
                                             {"chunks_mixed_path", 6},
                                             {"meeting_token", 7},
                                             {"bound_s", 8},
                                             {"bound_estimated", true},
                                             {"efficiency", 9},
                                             {"predicted_s", 10},
                                             {"restored_s", 11},
                                             {"slices_predicted", 12},
                                             {"slice_error", 13},
                                             {"turns", 4},
                                             {"planning_us_per_turn", 250000},
                                             {"reasons", {"why"}},
                                             {"reasons_dropped", 15}}));
}

// What was achieved can be achieved.
TEST(ReportTest, NoRestorationIsBetterThanItsBound) {
  RestoreReport report;
  report.bound_s = 3;
  report.SetActual(Seconds(2));
  EXPECT_EQ(report.bound_s, 2);
  EXPECT_EQ(report.efficiency, 1);
}

TEST(ReportTest, ListsAreBounded) {
  RestoreReport report;
  for (size_t i = 0; i < RestoreReport::kReasonsMax + 5; ++i) report.AddReason(std::to_string(i));
  EXPECT_EQ(report.reasons.size(), RestoreReport::kReasonsMax);
  EXPECT_EQ(report.reasons_dropped, 5u);
  RestoreReport same;
  for (int i = 0; i < 3; ++i) same.AddReason("slice");
  EXPECT_EQ(same.reasons.size(), 1u);
  for (size_t i = 0; i < RestoreReport::kTimelineMax + 2; ++i) same.AddTimeline({});
  EXPECT_EQ(same.timeline_dropped, 2u);
}

TEST(TraceTest, OneRowPerLaneWithoutOverlaps) {
  RestoreReport report;
  report.chunk_tokens = 128;
  report.AddTimeline({"compute", 0, 4, 0, 2, Outcome::kPublished});
  report.AddTimeline({"disk", 7, 1, 0, 1, Outcome::kPublished});
  report.AddTimeline({"disk", 6, 1, 0, 2, Outcome::kFailed});
  const auto trace = ChromeTrace(report);
  std::map<int, double> end;
  int spans = 0;
  for (const auto& event : trace["traceEvents"]) {
    if (event["ph"] != "X") continue;
    ++spans;
    const double ts = event["ts"], dur = event["dur"];
    EXPECT_GE(ts, end[event["tid"]]);
    EXPECT_GE(dur, 0);
    end[event["tid"]] = ts + dur;
  }
  EXPECT_EQ(spans, 3);
  EXPECT_EQ(end.size(), 2u);
  EXPECT_EQ(end[0], 2e6);
}

TEST(TraceTest, RowsSayWhichLaneTheyAre) {
  RestoreReport report;
  report.AddTimeline({"disk", 0, 128, 0, 1, Outcome::kLate});
  const auto trace = ChromeTrace(report);
  std::vector<std::string> rows;
  for (const auto& event : trace["traceEvents"]) {
    if (event["name"] == "thread_name") rows.push_back(event["args"]["name"]);
  }
  EXPECT_EQ(rows, (std::vector<std::string>{"compute", "load disk"}));
}

TEST(TraceTest, AFileThatCannotBeWrittenIsAnError) {
  const Status full = WriteChromeTrace("/dev/full", {});
  ASSERT_FALSE(full);
  EXPECT_NE(full.error().message.find("/dev/full"), std::string::npos);
  EXPECT_FALSE(WriteChromeTrace("/proc/no/such/directory", {}));
}

}  // namespace
}  // namespace kvcake
