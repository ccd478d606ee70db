#include "bench/traffic_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace kvcake::bench {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(LatencySummary, PercentilesAreValuesThatWereMeasured) {
  std::vector<double> seconds;
  for (int i = 100; i >= 1; --i) seconds.push_back(1e-3 * i);
  const auto summary = LatencySummary::Of(seconds);
  EXPECT_DOUBLE_EQ(summary.mean, 50.5);
  EXPECT_DOUBLE_EQ(summary.p50, 50);
  EXPECT_DOUBLE_EQ(summary.p90, 90);
  EXPECT_DOUBLE_EQ(summary.p95, 95);
  EXPECT_DOUBLE_EQ(summary.p99, 99);
  EXPECT_EQ(LatencySummary::Of({}).p99, 0);
  EXPECT_DOUBLE_EQ(LatencySummary::Of({0.002}).p50, 2);
}

// Two answers and two failures.
TrafficResult Example() {
  TrafficResult result{.model = "m", .characters_per_token = 3, .duration_s = 4, .answers = {}};
  TrafficAnswer one{.planned_tokens = 100, .due_s = 0.5, .sent_s = 1};
  one.answer.token_s = {1.5, 1.6, 1.9};
  one.answer.end_s = 2;
  one.answer.prompt_tokens = 110;
  one.answer.completion_tokens = 5;
  one.answer.cached_tokens = 55;
  TrafficAnswer two{.conversation = 1, .planned_tokens = 300, .due_s = 2, .sent_s = 2};
  two.answer.token_s = {3};
  two.answer.end_s = 3;
  two.answer.prompt_tokens = 290;
  two.answer.completion_tokens = 1;
  two.answer.cached_tokens = 0;
  TrafficAnswer three{.conversation = 2, .sent_s = 3};
  three.answer.SetError("HTTP 429", "status 429: slow down");
  TrafficAnswer four{.conversation = 3, .sent_s = 3};
  four.answer.SetError("HTTP 429", "status 429: again");
  result.answers = {one, two, three, four};
  return result;
}

TEST(TrafficSummary, CountsWhatCameAndWhatFailed) {
  const TrafficSummary summary = Summarize(Example());
  EXPECT_EQ(summary.completed, 2u);
  EXPECT_EQ(summary.failed, 2u);
  EXPECT_EQ(summary.input_tokens, 400);
  EXPECT_EQ(summary.output_tokens, 6);
  EXPECT_DOUBLE_EQ(summary.planned_tokens_mean, 200);
  EXPECT_DOUBLE_EQ(summary.input_tokens_mean, 200);
  EXPECT_DOUBLE_EQ(*summary.hit_rate, 55.0 / 400);
  EXPECT_DOUBLE_EQ(summary.requests_per_s(), 0.5);
  EXPECT_DOUBLE_EQ(summary.output_tokens_per_s(), 1.5);
  EXPECT_DOUBLE_EQ(summary.tokens_per_s(), 101.5);
  EXPECT_DOUBLE_EQ(summary.ttft.mean, 750);
  EXPECT_DOUBLE_EQ(summary.ttft.p50, 500);
  EXPECT_DOUBLE_EQ(summary.tpot.mean, 100);  // 0.4 s for the four tokens after the first
  EXPECT_NEAR(summary.itl.p99, 300, 1e-9);
  EXPECT_DOUBLE_EQ(summary.e2el.mean, 1000);
  EXPECT_DOUBLE_EQ(summary.delay.mean, 250);
  ASSERT_EQ(summary.errors.size(), 1u);
  EXPECT_EQ(summary.errors.at("HTTP 429").count, 2u);
  EXPECT_EQ(summary.errors.at("HTTP 429").first, "status 429: slow down");
}

TEST(TrafficSummary, AServerMayKeepToItselfWhatItCached) {
  TrafficResult result = Example();
  for (TrafficAnswer& one : result.answers) one.answer.cached_tokens.reset();
  const TrafficSummary summary = Summarize(result);
  EXPECT_FALSE(summary.hit_rate);
  EXPECT_THAT(TrafficTable(summary), HasSubstr("not told"));
  EXPECT_FALSE(TrafficJson(result, summary).contains("hit_rate"));
}

TEST(TrafficReport, HasTheFiguresInEveryForm) {
  const TrafficResult result = Example();
  const TrafficSummary summary = Summarize(result);
  EXPECT_THAT(TrafficTable(summary), HasSubstr("2 failed, HTTP 429: status 429: slow down"));
  const auto json = TrafficJson(result, summary);
  EXPECT_EQ(json["median_ttft_ms"], 500);
  EXPECT_EQ(json["failed"], 2);
  EXPECT_EQ(json["errors"]["HTTP 429"]["count"], 2);
  ASSERT_EQ(json["requests"].size(), 4u);
  EXPECT_EQ(json["requests"][0]["ttft_s"], 0.5);
  EXPECT_EQ(json["requests"][0]["itl_s"].size(), 2u);
  EXPECT_EQ(json["requests"][2]["error_kind"], "HTTP 429");
  EXPECT_FALSE(json.contains("checked"));
}

TEST(TrafficReport, DrawsAlsoWhereNothingCame) {
  TrafficResult result = Example();
  EXPECT_THAT(DrawTraffic(result, "a < b"), HasSubstr("a &lt; b"));
  EXPECT_THAT(DrawTraffic(result, ""), HasSubstr("failed"));
  EXPECT_THAT(DrawTraffic(result, ""), HasSubstr("not cached"));
  result.answers.resize(1);
  EXPECT_THAT(DrawTraffic(result, ""), Not(HasSubstr("failed")));
  result.answers.clear();
  EXPECT_THAT(DrawTraffic(result, ""), Not(HasSubstr("nan")));
}

}  // namespace
}  // namespace kvcake::bench
