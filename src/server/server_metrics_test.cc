#include "server/server_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "store/slow_tiers_testing.h"
#include "store/tier_testing.h"

namespace kvcake {
namespace {

using testing::HasSubstr;

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

}  // namespace
}  // namespace kvcake
