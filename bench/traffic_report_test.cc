#include "bench/traffic_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>

namespace kvcake::bench {
namespace {

using testing::ElementsAre;
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

// No two figures of it are the same.
TrafficSummary Figures() {
  TrafficSummary figures;
  figures.completed = 12;
  figures.failed = 3;
  figures.duration_s = 8;
  figures.input_tokens = 4800;
  figures.output_tokens = 600;
  figures.planned_tokens_mean = 390;
  figures.input_tokens_mean = 400;
  figures.hit_rate = 0.25;
  figures.ttft = {.mean = 11, .p50 = 12, .p90 = 13, .p95 = 14, .p99 = 15};
  figures.tpot = {.mean = 21, .p50 = 22, .p90 = 23, .p95 = 24, .p99 = 25};
  figures.itl = {.mean = 31, .p50 = 32, .p90 = 33, .p95 = 34, .p99 = 35};
  figures.e2el = {.mean = 41, .p50 = 42, .p90 = 43, .p95 = 44, .p99 = 45};
  figures.delay = {.mean = 51, .p50 = 52, .p90 = 53, .p95 = 54, .p99 = 55};
  return figures;
}

TEST(TrafficReport, TheTableHasEachFigureInItsPlace) {
  std::istringstream table(TrafficTable(Figures()));
  std::vector<std::string> lines;
  for (std::string line; std::getline(table, line);) {
    lines.push_back(std::regex_replace(line, std::regex(" +"), " "));
  }
  EXPECT_THAT(
      lines,
      ElementsAre("Successful requests: 12", "Failed requests: 3", "Benchmark duration (s): 8.00",
                  "Total input tokens: 4800", "Total generated tokens: 600",
                  "Mean prompt (tokens): 400", " as asked for: 390", "Cached prompt tokens: 25.0%",
                  "Request throughput (req/s): 1.50", "Output token throughput (tok/s): 75.00",
                  "Total token throughput (tok/s): 675.00", " mean p50 p90 p95 p99",
                  "Time to first token (ms) 11.00 12.00 13.00 14.00 15.00",
                  "Time per token (ms) 21.00 22.00 23.00 24.00 25.00",
                  "Inter-token latency (ms) 31.00 32.00 33.00 34.00 35.00",
                  "End-to-end latency (ms) 41.00 42.00 43.00 44.00 45.00",
                  "Sent late by (ms) 51.00 52.00 53.00 54.00 55.00"));
}

TEST(TrafficReport, TheJsonHasEachFigureByItsName) {
  TrafficResult result{.model = "m", .characters_per_token = 3, .duration_s = 8, .answers = {}};
  result.checked = 5;
  result.checked_cached = 2;
  result.differences = {{.request = 1, .position = 3, .run = "as it was", .cold = "as it is"},
                        {.request = 4, .position = 0, .run = "", .cold = "", .error = "timeout"}};
  auto json = TrafficJson(result, Figures());
  const char* const names[] = {"ttft_ms", "tpot_ms", "itl_ms", "e2el_ms", "delay_ms"};
  const char* const kinds[] = {"mean", "median", "p90", "p95", "p99"};
  for (int name = 0; name < 5; ++name) {
    for (int kind = 0; kind < 5; ++kind) {
      const std::string key = std::string(kinds[kind]) + "_" + names[name];
      EXPECT_EQ(json[key], 10 * (name + 1) + kind + 1) << key;
      json.erase(key);
    }
  }
  EXPECT_EQ(json, nlohmann::ordered_json::parse(R"({
      "model_id": "m", "duration": 8.0, "completed": 12, "failed": 3, "total_input_tokens": 4800,
      "total_output_tokens": 600, "request_throughput": 1.5, "output_throughput": 75.0,
      "total_token_throughput": 675.0, "mean_prompt_tokens": 400.0,
      "mean_prompt_tokens_asked": 390.0, "characters_per_token": 3.0, "hit_rate": 0.25,
      "errors": {}, "checked": 5, "checked_cached": 2, "differences": [
        {"request": 1, "position": 3, "run": "as it was", "cold": "as it is"},
        {"request": 4, "position": 0, "error": "timeout", "run": "", "cold": ""}],
      "requests": []})"));
}

TEST(TrafficReport, ARequestHasItsOwnFigures) {
  TrafficResult result = Example();
  result.answers[0].conversation = 7;
  result.answers[0].round = 2;
  result.answers[0].answer.finish_reason = "stop";
  auto one = TrafficJson(result, Summarize(result))["requests"][0];
  EXPECT_NEAR(one["itl_s"][0].get<double>(), 0.1, 1e-9);
  EXPECT_NEAR(one["itl_s"][1].get<double>(), 0.3, 1e-9);
  one.erase("itl_s");
  EXPECT_EQ(one, nlohmann::ordered_json::parse(R"({
      "conversation": 7, "round": 2, "due_s": 0.5, "sent_s": 1.0, "ttft_s": 0.5, "end_s": 2.0,
      "finish_reason": "stop", "prompt_tokens": 110, "cached_tokens": 55,
      "completion_tokens": 5})"));
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
