// In which order chunks are written behind.
#include <gtest/gtest.h>

#include "store/slow_tiers_testing.h"
#include "store/tier_testing.h"
#include "store/write_behind.h"

namespace kvcake {
namespace {

constexpr KvLayout kOrderLayout{.layers = 2, .kv_heads = 1, .head_dim = 16, .chunk_tokens = 16};

ChunkKey OrderKey(int i) { return ChunkKeys(KvIdentity().Root(), std::vector{i}, 1)[0]; }

// In which order they are written, behind the first.
class NotingTier : public GatedTier {
 public:
  using GatedTier::GatedTier;
  Status Put(const ChunkWrite& chunk) override {
    const Status status = GatedTier::Put(chunk);
    MutexLock lock(mutex);
    keys.push_back(chunk.key);
    return status;
  }
  Mutex mutex;
  std::vector<ChunkKey> keys GUARDED_BY(mutex);
};

TEST(WriteOrderTest, WhatOthersWaitForIsWrittenFirst) {
  MemoryTierOptions options;
  options.layout = kOrderLayout;
  NotingTier tier(options);
  const auto pool =
      std::move(PagePool::Create(kOrderLayout, 16 * kOrderLayout.page_bytes()).value());
  const auto offer = [&](WriteBehind& writer, int i, bool awaited) {
    writer.Offer({.key = OrderKey(i),
                  .parent = KvIdentity().Root(),
                  .position = i,
                  .page = std::move(*pool->Draw()),
                  .awaited = awaited});
  };
  WriteBehind writer({&tier}, *pool, {.threads = 1});
  {
    MutexLock closed(tier.gate);
    offer(writer, 0, false);
    ASSERT_TRUE(testing_util::Eventually([&] { return writer.Stats().writing == 1; }));
    offer(writer, 1, false);
    offer(writer, 2, false);
    for (int i : {3, 4}) offer(writer, i, true);
  }
  ASSERT_TRUE(writer.Flush());
  MutexLock lock(tier.mutex);
  EXPECT_EQ(tier.keys,
            (std::vector{OrderKey(0), OrderKey(3), OrderKey(4), OrderKey(1), OrderKey(2)}));
}

}  // namespace
}  // namespace kvcake
