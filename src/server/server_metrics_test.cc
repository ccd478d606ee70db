#include "server/server_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/demo_runtime_testing.h"
#include "store/slow_tiers_testing.h"
#include "store/tier_testing.h"

namespace kvcake {
namespace {

using testing::HasSubstr;
using testing::Not;

// Both tiers hang, and each chunk is for both: what is dropped is counted for each, a page once.
TEST(ServerMetricsTest, PagesHeldAndWritesDroppedAreToldByWhomAndWhy) {
  constexpr KvLayout kLayout{.layers = 1, .kv_heads = 1, .head_dim = 16, .chunk_tokens = 16};
  GatedTier store({.layout = kLayout, .name = "disk"}), ram({.layout = kLayout, .name = "ram"});
  const auto pool = PagePool::Create(kLayout, 10 * kLayout.page_bytes()).value();
  WriteBehind writer({&store}, *pool, {.queue_share = 0.6, .threads = 0}, &ram);
  MutexLock closed(ram.gate);
  const auto keys = testing_util::Chain(8);
  for (int i = 0; i < 8; ++i) {
    writer.Offer(
        {keys[i], testing_util::ParentOf(keys, i), i, NumericPath::kF32, std::move(*pool->Draw())});
    if (i > 1) continue;  // the first two begin to be written to the RAM tier
    EXPECT_TRUE(testing_util::Eventually(
        [&] { return writer.Stats().writing == static_cast<uint64_t>(i + 1); }));
  }
  std::vector<PageHandle> drawn;
  for (int i = 0; i < 4 + 3; ++i) drawn.push_back(std::move(*pool->Draw()));

  PrometheusText text;
  AddWrites(writer.Stats(), 5, {&store}, &ram, &text);
  const auto has = [&](const std::string& line) {
    EXPECT_THAT(text.text(), HasSubstr("\n" + line + "\n"));
  };
  has("kvcake_pages_held{by=\"queued_writes\"} 1");
  has("kvcake_pages_held{by=\"writes\"} 2");
  has("kvcake_pages_held{by=\"late_reads\"} 5");
  has("kvcake_writes_in_flight 3");
  for (const std::string tier : {"ram", "disk"}) {
    has("kvcake_writes_dropped_total{tier=\"" + tier + "\",reason=\"queue_full\"} 2");
    has("kvcake_writes_dropped_total{tier=\"" + tier + "\",reason=\"page_wanted\"} 3");
  }
}

// All numbers are different: each is found by its own name, and of its own tier.
TEST(ServerMetricsTest, EachOfATiersNumbersHasItsOwnName) {
  constexpr KvLayout kLayout{.layers = 1, .kv_heads = 1, .head_dim = 16, .chunk_tokens = 16};
  MemoryTier disk({.layout = kLayout, .name = "disk"}), redis({.layout = kLayout, .name = "redis"});
  const TierStats stats{.chunks = 1,
                        .bytes = 2,
                        .reads = 3,
                        .read_bytes = 4,
                        .reads_failed = 5,
                        .quarantined = 6,
                        .writes = 7,
                        .write_bytes = 8,
                        .writes_failed = 9,
                        .writes_found = 10,
                        .evicted = 11,
                        .evictions_failed = 18,
                        .free_bytes = 12,
                        .reads_overdue = 19,
                        .opens = {13, 0.5},
                        .looks = {14, 1.5},
                        .scans = {15, 2.5},
                        .encodes = {16, 3.5},
                        .decodes = {17, 4.5}};
  PrometheusText text;
  AddTierStats({&disk, &redis}, {stats, {}}, &text);
  const auto has = [&](const std::string& name, const std::string& value) {
    EXPECT_THAT(text.text(),
                HasSubstr("\nkvcake_tier_" + name + "{tier=\"disk\"} " + value + "\n"));
  };
  has("chunks", "1");
  has("bytes", "2");
  has("reads_total", "3");
  has("read_bytes_total", "4");
  has("reads_failed_total", "5");
  has("quarantined_total", "6");
  has("writes_total", "7");
  has("write_bytes_total", "8");
  has("writes_failed_total", "9");
  has("computed_twice_total", "10");
  has("evicted_total", "11");
  has("evictions_failed_total", "18");
  has("reads_overdue", "19");
  has("free_bytes", "12");
  has("opens_total", "13");
  has("open_seconds_total", "0.5");
  has("looks_total", "14");
  has("look_seconds_total", "1.5");
  has("scans_total", "15");
  has("scan_seconds_total", "2.5");
  has("encodes_total", "16");
  has("encode_core_seconds_total", "3.5");
  has("decodes_total", "17");
  has("decode_core_seconds_total", "4.5");
  EXPECT_THAT(text.text(), HasSubstr("\nkvcake_tier_evicted_total{tier=\"redis\"} 0\n"));
  EXPECT_THAT(text.text(), Not(HasSubstr("kvcake_tier_free_bytes{tier=\"redis\"}")));
}

class ServerMetricsTextTest : public testing::Test {
 protected:
  // Finds a line of a scrape: its name, its labels but the model's, and its value.
  void Has(const ServerState& state, const std::string& name, const std::string& value,
           const std::string& labels = "") {
    EXPECT_THAT(metrics_.Text("m", *runtime_, state),
                HasSubstr("\n" + name + "{model_name=\"m\"" + labels + "} " + value + "\n"));
  }

  const std::unique_ptr<Runtime> runtime_ = testing_util::DemoRuntime();
  ServerMetrics metrics_{"ram", {}};
};

TEST_F(ServerMetricsTextTest, EachOfARequestsNumbersHasItsOwnName) {
  Completion completion{.tokens = {1, 2, 3, 4, 5},
                        .finish_reason = FinishReason::kStop,
                        .queue_s = 1,
                        .restore_s = 2,
                        .ttft_s = 8,
                        .decode_s = 16};
  RestoreReport& report = completion.report;
  report.chunk_tokens = 128;
  report.prompt_tokens = 1100;
  report.tokens_computed = 716;
  report.tokens_reused = 128;
  report.tokens_loaded["disk"] = 256;
  report.chunks_failed = 3;
  report.chunks_mixed_path = 2;
  report.efficiency = 0.75;
  metrics_.Begun(completion);
  metrics_.Finished(completion);
  metrics_.Stepped({.decoded = 5, .fresh = 70, .restored = 600});
  const auto has = [&](const char* name, const char* value, const char* labels = "") {
    Has({}, name, value, labels);
  };
  has("vllm:request_queue_time_seconds_sum", "1");
  has("kvcake_restore_seconds_sum", "2");
  has("kvcake_suffix_seconds_sum", "5");
  has("vllm:time_to_first_token_seconds_sum", "8");
  has("vllm:request_decode_time_seconds_sum", "16");
  has("vllm:e2e_request_latency_seconds_sum", "24");
  has("vllm:e2e_request_latency_seconds_bucket", "1", ",le=\"50\"");
  has("vllm:request_time_per_output_token_seconds_sum", "4");  // four follow the first
  has("kvcake_restore_efficiency_sum", "0.75");
  has("vllm:prompt_tokens_total", "1100");
  has("vllm:request_prompt_tokens_sum", "1100");
  has("vllm:request_prompt_tokens_bucket", "1", ",le=\"2048\"");
  has("vllm:request_generation_tokens_sum", "5");
  has("vllm:iteration_tokens_total_sum", "675");
  has("vllm:prefix_cache_queries_total", "1100");
  has("vllm:prefix_cache_hits_total", "384");
  has("kvcake_hit_tokens_total", "128", ",tier=\"ram\"");
  has("kvcake_hit_tokens_total", "256", ",tier=\"disk\"");
  has("kvcake_computed_tokens_total", "716");
  has("kvcake_chunks_computed_total", "5");
  has("kvcake_chunks_loaded_total", "2");
  has("kvcake_chunks_failed_total", "3");
  has("kvcake_chunks_mixed_path_total", "2");
  has("kvcake_step_tokens_total", "5", ",kind=\"decode\"");
  has("kvcake_step_tokens_total", "70", ",kind=\"fresh\"");
  has("kvcake_step_tokens_total", "600", ",kind=\"restore\"");
  metrics_.Begun({});  // for which nothing was there
  has("kvcake_restore_efficiency_count", "1");
}

TEST_F(ServerMetricsTextTest, OnlyAnswersAndWhatFollowsAFirstTokenHaveTimes) {
  metrics_.Finished({.finish_reason = FinishReason::kCancelled});  // before it had begun
  for (const char* const name :
       {"vllm:e2e_request_latency_seconds_count", "vllm:request_decode_time_seconds_count",
        "vllm:request_generation_tokens_count"}) {
    Has({}, name, "0");
  }
  metrics_.Finished({.tokens = {1}, .finish_reason = FinishReason::kStop});
  Has({}, "vllm:e2e_request_latency_seconds_count", "1");
  Has({}, "vllm:request_time_per_output_token_seconds_count", "0");
  metrics_.Finished({.tokens = {1, 2}, .finish_reason = FinishReason::kStop});
  Has({}, "vllm:request_time_per_output_token_seconds_count", "1");
  Has({}, "vllm:request_success_total", "1", ",finished_reason=\"abort\"");
}

TEST_F(ServerMetricsTextTest, EachOfTheServersNumbersHasItsOwnName) {
  const ServerState state = {
      .loop =
          {.running = 1, .waiting = 2, .preemptions = 3, .steps = 4, .step_s = 5, .delivery_s = 6},
      .chain = {.ranks = 7, .lost = 8},
      .preparing = {.small = 9, .large = 10},
      .http = {
          .clients =
              {.open = 11, .waiting = 12, .evicted = 13, .refused_full = 14, .refused_client = 15},
          .admin =
              {.open = 16, .waiting = 20, .evicted = 17, .refused_full = 18, .refused_client = 21},
          .handshakes_failed = 19}};
  const auto has = [&](const char* name, const char* value, const char* labels = "") {
    Has(state, name, value, labels);
  };
  has("vllm:num_requests_running", "1");
  has("vllm:num_requests_waiting", "2");
  has("vllm:num_preemptions_total", "3");
  has("kvcake_steps_total", "4");
  has("kvcake_step_seconds_total", "5");
  has("kvcake_delivery_seconds_total", "6");
  has("kvcake_chain_ranks", "7");
  has("kvcake_chain_lost_total", "8");
  has("kvcake_requests_preparing", "9", ",size=\"small\"");
  has("kvcake_requests_preparing", "10", ",size=\"large\"");
  has("kvcake_http_connections", "11", ",listener=\"clients\"");
  has("kvcake_http_connections_waiting", "12", ",listener=\"clients\"");
  has("kvcake_http_connections_evicted_total", "13", ",listener=\"clients\"");
  const char* const refused = "kvcake_http_connections_refused_total";
  has(refused, "14", ",listener=\"clients\",reason=\"connections_max\"");
  has(refused, "15", ",listener=\"clients\",reason=\"per_client\"");
  has("kvcake_http_connections", "16", ",listener=\"admin\"");
  has("kvcake_http_connections_waiting", "20", ",listener=\"admin\"");
  has("kvcake_http_connections_evicted_total", "17", ",listener=\"admin\"");
  has(refused, "18", ",listener=\"admin\",reason=\"connections_max\"");
  has(refused, "21", ",listener=\"admin\",reason=\"per_client\"");
  has("kvcake_tls_handshakes_failed_total", "19");
}

}  // namespace
}  // namespace kvcake
