// In which order chunks are written behind.
#include <gtest/gtest.h>

#include <atomic>

#include "store/memory_tier.h"
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
  void Disclaim(std::span<const ChunkKey> keys) override {
    MutexLock lock(mutex);
    disclaimed.insert(disclaimed.end(), keys.begin(), keys.end());
  }
  Mutex mutex;
  std::vector<ChunkKey> keys GUARDED_BY(mutex), disclaimed GUARDED_BY(mutex);
};

class WriteOrderTest : public testing::Test {
 protected:
  void Offer(WriteBehind& writer, int i, bool awaited) {
    writer.Offer({.key = OrderKey(i),
                  .parent = KvIdentity().Root(),
                  .position = i,
                  .page = std::move(*pool_->Draw()),
                  .awaited = awaited});
  }
  // Offers a chunk whose write begins, and does not end while the tier's gate is held.
  void OfferFirst(WriteBehind& writer) {
    Offer(writer, 0, false);
    ASSERT_TRUE(testing_util::Eventually([&] { return writer.Stats().writing == 1; }));
  }

  NotingTier tier_{{.layout = kOrderLayout}};
  std::unique_ptr<PagePool> pool_ =
      PagePool::Create(kOrderLayout, 16 * kOrderLayout.page_bytes()).value();
};

TEST_F(WriteOrderTest, WhatOthersWaitForIsWrittenFirst) {
  WriteBehind writer({&tier_}, *pool_, {.threads = 1});
  {
    MutexLock closed(tier_.gate);
    OfferFirst(writer);
    Offer(writer, 1, false);
    Offer(writer, 2, false);
    for (int i : {3, 4}) Offer(writer, i, true);
  }
  ASSERT_TRUE(writer.Flush());
  MutexLock lock(tier_.mutex);
  EXPECT_EQ(tier_.keys,
            (std::vector{OrderKey(0), OrderKey(3), OrderKey(4), OrderKey(1), OrderKey(2)}));
}

TEST_F(WriteOrderTest, NobodyNeedWaitForWhatIsDropped) {
  // Four pages may wait.
  WriteBehind writer({&tier_}, *pool_, {.queue_share = 0.25, .threads = 1});
  {
    MutexLock closed(tier_.gate);
    OfferFirst(writer);
    for (int i = 1; i <= 4; ++i) Offer(writer, i, true);
    EXPECT_EQ(writer.Stats().dropped(), 1u) << "the queue is full";
    ASSERT_TRUE(pool_->Draw()) << "there are others";
    std::vector<PageHandle> all;
    while (writer.Stats().dropped() < 2) all.push_back(std::move(*pool_->Draw()));
  }
  ASSERT_TRUE(writer.Flush());
  MutexLock lock(tier_.mutex);
  EXPECT_EQ(tier_.disclaimed, (std::vector{OrderKey(1), OrderKey(2)}));
}

// Reads its page before it waits for the gate, as a staged store does.
class StagingTier : public NotingTier {
 public:
  using NotingTier::NotingTier;
  Status Put(const ChunkWrite& chunk) override {
    chunk.page_read();
    ++staged;
    ChunkWrite rest = chunk;
    rest.page_read = nullptr;
    return NotingTier::Put(rest);
  }
  std::atomic<int> staged{0};
};

// Others wait for what the store will have, whatever becomes of the copy in RAM.
TEST_F(WriteOrderTest, AClaimLastsWhileTheStoreWritesThoughTheRamTierGivesTheChunkUp) {
  StagingTier store({.layout = kOrderLayout});
  WriteBehind writer({&store}, *pool_, {.threads = 3}, &tier_);
  {
    MutexLock closed(store.gate), ram_closed(tier_.gate);
    for (int i = 0; i < 3; ++i) Offer(writer, i, /*awaited=*/true);
    ASSERT_TRUE(testing_util::Eventually([&] {
      return store.staged == 3 && writer.Stats().queued == 1;
    })) << "the RAM tier has two threads";
    std::vector<PageHandle> pages;
    while (auto page = pool_->Draw()) pages.push_back(std::move(*page));
    EXPECT_EQ(writer.Stats().ram.dropped_wanted, 1u);
    MutexLock lock(store.mutex);
    EXPECT_TRUE(store.disclaimed.empty());
  }
  ASSERT_TRUE(writer.Flush());
}

// What others wait for is offered again when its prompt is done.
TEST_F(WriteOrderTest, WhatIsNotKeptIsCountedOnce) {
  const std::vector<WrittenStore> stores = {{&tier_, StoreWrites::kSecondUse}};
  WriteBehind writer(stores, *pool_);
  for (const bool awaited : {true, false}) Offer(writer, 0, awaited);
  EXPECT_EQ(writer.Stats().not_admitted, 1u);
}

TEST_F(WriteOrderTest, NobodyWaitsForWhatOnlyTheRamTierGets) {
  MemoryTier ram({.layout = kOrderLayout});
  ASSERT_TRUE(testing_util::PutChunk(tier_, kOrderLayout, OrderKey(0), KvIdentity().Root()));
  WriteBehind writer({&tier_}, *pool_, {}, &ram);
  Offer(writer, 0, /*awaited=*/true);
  ASSERT_TRUE(writer.Flush());
  EXPECT_EQ(ram.Stats().chunks, 1u);
  MutexLock lock(tier_.mutex);
  EXPECT_EQ(tier_.disclaimed, std::vector{OrderKey(0)});
}

TEST_F(WriteOrderTest, NobodyWaitsForWhatAnotherStoreHas) {
  MemoryTier second({.layout = kOrderLayout});
  ASSERT_TRUE(testing_util::PutChunk(second, kOrderLayout, OrderKey(0), KvIdentity().Root()));
  WriteBehind writer({&tier_, {&second, StoreWrites::kNever}}, *pool_);
  const auto disclaimed = [&] {
    MutexLock lock(tier_.mutex);
    return tier_.disclaimed;
  };
  Offer(writer, 0, /*awaited=*/false);
  EXPECT_TRUE(disclaimed().empty());
  Offer(writer, 0, /*awaited=*/true);
  EXPECT_EQ(disclaimed(), std::vector{OrderKey(0)});
}

}  // namespace
}  // namespace kvcake
