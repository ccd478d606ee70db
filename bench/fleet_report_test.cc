#include "bench/fleet_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <tuple>

#include "bench/fleet_servers.h"

namespace kvcake::bench {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(ComputedTwice, IsWhatWasComputedBeyondOnceOfTheDocuments) {
  EXPECT_DOUBLE_EQ(ComputedTwice(110, 110, 100), 0);
  EXPECT_DOUBLE_EQ(ComputedTwice(115, 110, 100), 0.05);
  EXPECT_DOUBLE_EQ(ComputedTwice(310, 110, 100), 2) << "three servers, each all of them";
  EXPECT_DOUBLE_EQ(ComputedTwice(109, 110, 100), 0) << "a request of which nothing is counted";
  EXPECT_DOUBLE_EQ(ComputedTwice(5, 0, 0), 0);
}

TEST(ServerCounts, AreReadFromMetricsAndAdded) {
  const ServerCounts one = CountsIn(
      "vllm:request_success_total{model_name=\"demo\",finished_reason=\"stop\"} 1\n"
      "vllm:request_success_total{model_name=\"demo\",finished_reason=\"length\"} 2\n"
      "vllm:prompt_tokens_total{model_name=\"demo\"} 1000\n"
      "vllm:prefix_cache_hits_total{model_name=\"demo\"} 700\n"
      "kvcake_chunks_computed_total{model_name=\"demo\"} 3\n"
      "kvcake_chunks_loaded_total{model_name=\"demo\"} 4\n"
      "kvcake_tier_computed_twice_total{model_name=\"demo\",tier=\"redis\"} 1\n"
      "kvcake_tier_computed_twice_total{model_name=\"demo\",tier=\"disk\"} 1\n"
      "vllm:num_requests_running{model_name=\"demo\"} 2\n"
      "kvcake_writes_in_flight{model_name=\"demo\"} 5\n");
  ServerCounts sum = one;
  sum += one;
  EXPECT_EQ(sum.requests, 6);
  EXPECT_EQ(sum.prompt_tokens, 2000);
  EXPECT_EQ(sum.cached_tokens, 1400);
  EXPECT_EQ(sum.chunks_computed, 6);
  EXPECT_EQ(sum.chunks_loaded, 8);
  EXPECT_EQ(sum.written_twice, 4);
  EXPECT_EQ(sum.running, 4);
  EXPECT_EQ(sum.writes, 10);
}

std::vector<FleetRow> Rows(double hit_share, double computed_twice) {
  return {{.servers = 1, .store = "redis", .balance = "none", .hit_share = 0.8},
          {.servers = 3, .store = "none", .balance = "prefix", .hit_share = 0.3},
          {.servers = 3,
           .store = "redis",
           .balance = "prefix",
           .hit_share = hit_share,
           .computed_twice = computed_twice}};
}

TEST(FleetReport, SaysWhichGoalsWereMissed) {
  const std::string reached = FleetGoals(Rows(0.79, 0.05));
  EXPECT_THAT(reached, HasSubstr("3 servers, redis, prefix: 0.988 of one server's hit share"));
  EXPECT_THAT(reached, Not(HasSubstr("missed")));
  EXPECT_THAT(FleetGoals(Rows(0.75, 0.05)), HasSubstr("(goal 0.95, missed)"));
  EXPECT_THAT(FleetGoals(Rows(0.79, 0.06)), HasSubstr("(goal 5%, missed)"));
  EXPECT_EQ(FleetGoals({}), "");
}

TEST(FleetReport, NoMoreThanAllThatWasComputedAgainWasStoredMeanwhile) {
  std::vector<FleetRow> rows = Rows(0.79, 0.05);
  FleetRow& shared = rows.back();
  shared.distinct = 110;
  using Case = std::tuple<int, int, const char*>;
  for (const auto& [computed, written_twice, said] :
       {Case(120, 5, ", 50% of that"), Case(120, 13, ", 100% of that"),
        Case(110, 3, ", 0% of that"), Case(109, 3, ", 0% of that")}) {
    shared.computed = computed;
    shared.written_twice = written_twice;
    EXPECT_THAT(FleetGoals(rows), HasSubstr(said));
  }
}

// No two figures of a row are the same.
TEST(FleetReport, EachFigureIsInItsPlaceAndByItsName) {
  const FleetRow row{.servers = 3,
                     .store = "redis",
                     .balance = "prefix",
                     .hit_share = 0.75,
                     .computed_twice = 0.125,
                     .ttft_p50_s = 0.5,
                     .ttft_p95_s = 2,
                     .requests_per_s = 7,
                     .computed = 130,
                     .distinct = 110,
                     .written_twice = 9};
  EXPECT_EQ(
      FleetLine(row),
      "      3 redis  prefix         0.750          12.5%      0.500      2.000       7.00\n");
  EXPECT_EQ(ToJson(row), nlohmann::ordered_json::parse(R"({
      "servers": 3, "store": "redis", "balance": "prefix", "hit_share": 0.75,
      "computed_twice": 0.125, "ttft_p50_s": 0.5, "ttft_p95_s": 2.0, "requests_per_s": 7.0,
      "chunks_computed": 130.0, "chunks_distinct": 110.0, "chunks_written_twice": 9.0})"));
  const JoinRow join{.servers = 3,
                     .requests = 5,
                     .prompt_tokens = 12000,
                     .cached_share = 0.875,
                     .possible_share = 0.9375,
                     .chunks_loaded = 90};
  EXPECT_EQ(JoinLine(join),
            "a server joins 3: 5 requests, 0.875 of their 12000 prompt tokens cached (there: "
            "0.938), 90 chunks loaded\n");
  EXPECT_EQ(ToJson(join), nlohmann::ordered_json::parse(R"({
      "servers": 3, "requests": 5.0, "prompt_tokens": 12000.0, "cached_share": 0.875,
      "possible_share": 0.9375, "chunks_loaded": 90.0})"));
  const KillRow kill{.servers = 3,
                     .requests = 40,
                     .running = 8,
                     .lost = 7,
                     .lost_elsewhere = 1,
                     .answered = 6,
                     .cached_share = 0.875,
                     .possible_share = 0.9375,
                     .chunks_loaded = 60};
  EXPECT_EQ(KillLine(kill),
            "kill -9 of one of 3, which had 8 of 40 requests: 7 lost (1 elsewhere), 6 answered "
            "when asked again, 0.875 of their prompts cached (there: 0.938), 60 chunks loaded\n");
  EXPECT_EQ(ToJson(kill), nlohmann::ordered_json::parse(R"({
      "servers": 3, "requests": 40, "running": 8, "lost": 7, "lost_elsewhere": 1, "answered": 6,
      "cached_share": 0.875, "possible_share": 0.9375, "chunks_loaded": 60.0})"));
}

TEST(JoinRow, FailsWhereTheStoreGaveLittle) {
  const JoinRow good{.servers = 3,
                     .requests = 3,
                     .prompt_tokens = 12000,
                     .cached_share = 0.97,
                     .possible_share = 0.98,
                     .chunks_loaded = 90};
  EXPECT_TRUE(good.Check());
  JoinRow bad = good;
  bad.cached_share = 0.87;
  EXPECT_THAT(bad.Check().error().message, HasSubstr("0.870"));
  bad = good;
  bad.chunks_loaded = 0;
  EXPECT_FALSE(bad.Check());
  EXPECT_FALSE(JoinRow().Check()) << "it was asked for nothing";
}

TEST(KillRow, FailsWhereMoreIsLostThanRanThereOrIsNotAnswered) {
  const KillRow good{.servers = 3,
                     .requests = 40,
                     .running = 4,
                     .lost = 4,
                     .lost_elsewhere = 0,
                     .answered = 4,
                     .cached_share = 0.98,
                     .possible_share = 0.98,
                     .chunks_loaded = 60};
  EXPECT_TRUE(good.Check());
  KillRow bad = good;
  bad.lost_elsewhere = 1;
  EXPECT_THAT(bad.Check().error().message, HasSubstr("1 of which it did not have"));
  bad = good;
  bad.answered = 3;
  EXPECT_THAT(bad.Check().error().message, HasSubstr("1 of 4 lost requests were not answered"));
  bad = good;
  bad.cached_share = 0.85;
  EXPECT_FALSE(bad.Check());
  bad = good;
  bad.running = 0;
  EXPECT_FALSE(bad.Check());
  KillRow none_lost = good;
  none_lost.lost = none_lost.answered = 0;
  none_lost.cached_share = 0;
  EXPECT_TRUE(none_lost.Check()) << "the balancer may have asked others in time";
}

}  // namespace
}  // namespace kvcake::bench
