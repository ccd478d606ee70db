#include "cake/report.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "cake/trace.h"

namespace kvcake {
namespace {

TEST(ReportTest, PoliciesHaveNames) {
  for (Policy policy : {Policy::kCake, Policy::kCompute, Policy::kLoad}) {
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

}  // namespace
}  // namespace kvcake
