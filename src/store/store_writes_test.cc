#include "store/store_writes.h"

#include <gtest/gtest.h>

#include "kv/page_pool.h"
#include "store/memory_tier.h"
#include "store/open_store.h"
#include "store/slow_tiers_testing.h"
#include "store/tier_testing.h"
#include "store/write_behind.h"

namespace kvcake {
namespace {

constexpr KvLayout kWritesLayout{.layers = 2, .kv_heads = 1, .head_dim = 16, .chunk_tokens = 16};

TEST(StoreWritesTest, NamesRead) {
  for (StoreWrites writes : {StoreWrites::kAlways, StoreWrites::kSecondUse, StoreWrites::kNever}) {
    EXPECT_EQ(StoreWritesFromName(StoreWritesName(writes)), writes);
  }
  EXPECT_FALSE(StoreWritesFromName("sometimes"));
}

TEST(StoreWritesTest, UrlsSayThem) {
  EXPECT_EQ(ReadStoreUrl("/a?writes=second-use")->writes, StoreWrites::kSecondUse);
  EXPECT_EQ(ReadStoreUrl("redis://h:1?writes=never")->writes, StoreWrites::kNever);
  EXPECT_EQ(ReadStoreUrl("s3://bucket/p?endpoint=http://h:1&writes=always")->writes,
            StoreWrites::kAlways);
  EXPECT_FALSE(ReadStoreUrl("/a")->writes.has_value());
  const auto bad = ReadStoreUrl("/a?writes=sometimes");
  ASSERT_FALSE(bad);
  EXPECT_EQ(bad.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(bad.error().message,
            "store '/a?writes=sometimes': writes is 'sometimes', must be always, second-use or "
            "never");
}

TEST(StoreWritesTest, TheFirstOfSeveralIsWrittenToUnlessTheySayOtherwise) {
  const std::vector<StoreOptions> silent(2);
  EXPECT_EQ(WritesTo(silent, 0, StoreWrites::kSecondUse), StoreWrites::kSecondUse);
  EXPECT_EQ(WritesTo(silent, 1, StoreWrites::kAlways), StoreWrites::kNever);
  const std::vector<StoreOptions> said = {{.writes = StoreWrites::kNever},
                                          {.writes = StoreWrites::kAlways}};
  EXPECT_EQ(WritesTo(said, 0, StoreWrites::kAlways), StoreWrites::kNever);
  EXPECT_EQ(WritesTo(said, 1, StoreWrites::kNever), StoreWrites::kAlways);
}

TEST(StoreWritesTest, ClaimsAreMadeWhereMostProcessesFindAllChunks) {
  const StoreOptions plain;
  StoreOptions shared{.writes = StoreWrites::kAlways};
  StoreOptions s3{.s3 = S3Place(), .writes = StoreWrites::kAlways};
  const auto claims = [](std::vector<StoreOptions> stores, StoreWrites first) {
    return ClaimsStore(stores, first);
  };
  EXPECT_EQ(claims({plain, plain}, StoreWrites::kAlways), 0u);
  EXPECT_EQ(claims({plain, shared}, StoreWrites::kAlways), 1u);
  EXPECT_EQ(claims({plain, shared, s3}, StoreWrites::kNever), 1u);
  StoreOptions redis{.redis = RedisPlace(), .writes = StoreWrites::kAlways};
  EXPECT_EQ(claims({redis, shared}, StoreWrites::kAlways), 0u)
      << "a directory may be nobody else's";
  EXPECT_EQ(claims({plain, s3}, StoreWrites::kSecondUse), std::nullopt);
  EXPECT_EQ(claims({}, StoreWrites::kAlways), std::nullopt);
}

TEST(StoreWritesTest, KeysMetOnceAreRememberedBesideADirectoryAndNotWhereAKeyHidesThem) {
  const StoreOptions plain, redis{.redis = RedisPlace()};
  StoreOptions second{.writes = StoreWrites::kSecondUse};
  StoreOptions sealed = second;
  sealed.key = std::make_shared<const StoreKey>(
      StoreKey::Of("0123456789abcdef0123456789abcdef", "test").value());
  const auto seen = [](std::vector<StoreOptions> stores, StoreWrites first) {
    return SeenStore(stores, first);
  };
  EXPECT_EQ(seen({plain}, StoreWrites::kAlways), std::nullopt) << "nobody asks";
  EXPECT_EQ(seen({plain}, StoreWrites::kSecondUse), 0u);
  EXPECT_EQ(seen({redis, second}, StoreWrites::kAlways), 1u);
  EXPECT_EQ(seen({redis}, StoreWrites::kSecondUse), std::nullopt);
  EXPECT_EQ(seen({plain, sealed}, StoreWrites::kAlways), std::nullopt);
  sealed.writes = StoreWrites::kAlways;
  EXPECT_EQ(seen({sealed, second}, StoreWrites::kAlways), 1u) << "with nothing of the sealed one's";
}

// A chunk is an index; its bytes are all that index.
class SeveralStoresTest : public testing::Test {
 protected:
  using Writes = StoreWrites;

  static ChunkKey Key(int i) { return ChunkKeys(KvIdentity().Root(), std::vector{i}, 1)[0]; }
  void Offer(WriteBehind& writer, int i, bool awaited = false) {
    writer.Offer({.key = Key(i),
                  .parent = KvIdentity().Root(),
                  .position = i,
                  .path = NumericPath::kF32,
                  .page = std::move(*pool_->Draw()),
                  .awaited = awaited});
  }
  void Keep(Tier& tier, int i) {
    ASSERT_TRUE(testing_util::PutChunk(tier, kWritesLayout, Key(i), KvIdentity().Root()));
  }
  static bool Holds(Tier& tier, int i) { return tier.Residency({{Key(i)}})[0]; }
  int Drawable() {
    std::vector<PageHandle> drawn;
    while (auto page = pool_->Draw()) drawn.push_back(std::move(*page));
    return static_cast<int>(drawn.size());
  }

  const std::unique_ptr<PagePool> pool_ =
      PagePool::Create(kWritesLayout, 16 * kWritesLayout.page_bytes()).value();
  MemoryTier near_{{.layout = kWritesLayout}}, far_{{.layout = kWritesLayout}};
};

TEST_F(SeveralStoresTest, EachKeepsWhatItsOwnRuleSays) {
  MemoryTier read_only{{.layout = kWritesLayout}};
  WriteBehind writer({&near_, {&far_, Writes::kSecondUse}, {&read_only, Writes::kNever}}, *pool_);
  Offer(writer, 1);
  ASSERT_TRUE(writer.Flush());
  EXPECT_TRUE(Holds(near_, 1));
  EXPECT_FALSE(Holds(far_, 1));
  Offer(writer, 1);
  ASSERT_TRUE(writer.Flush());
  EXPECT_TRUE(Holds(far_, 1)) << "though the one before it holds it";
  EXPECT_EQ(read_only.Stats().chunks, 0u);
  const WriteBehindStats stats = writer.Stats();
  ASSERT_EQ(stats.stores.size(), 3u);
  EXPECT_EQ(stats.stores[0].written, 1u);
  EXPECT_EQ(stats.stores[1].written, 1u);
  EXPECT_EQ(stats.stores[2].written, 0u);
  EXPECT_EQ(stats.written, 2u);
  EXPECT_EQ(stats.not_admitted, 0u) << "one of them has kept it";
  EXPECT_EQ(pool_->Stats().referenced, 0u);
}

TEST_F(SeveralStoresTest, WhatAFartherOneHoldsComesNearerByPromotionOnly) {
  Keep(far_, 1);
  for (const bool promote : {false, true}) {
    WriteBehind writer({&near_, &far_}, *pool_, {.promote = promote});
    Offer(writer, 1);
    ASSERT_TRUE(writer.Flush());
    EXPECT_EQ(Holds(near_, 1), promote);
  }
  EXPECT_EQ(far_.Stats().writes, 1u);
}

TEST_F(SeveralStoresTest, OneThatFailsKeepsNothingFromTheOthers) {
  GatedTier far({.layout = kWritesLayout});
  WriteBehind writer({&near_, &far}, *pool_);
  far.fails = true;
  Offer(writer, 0);
  ASSERT_TRUE(writer.Flush());
  EXPECT_TRUE(Holds(near_, 0));
  EXPECT_EQ(writer.Stats().stores[1].failed, 1u);
  EXPECT_EQ(writer.Stats().stores[0].failed, 0u);
}

TEST_F(SeveralStoresTest, OneThatHangsKeepsNothingFromTheOthers) {
  GatedTier far({.layout = kWritesLayout});
  WriteBehind writer({&near_, &far}, *pool_, {.threads = 1, .patience = Seconds(0.02)});
  MutexLock closed(far.gate);
  for (int i = 0; i < 4; ++i) Offer(writer, i);
  EXPECT_TRUE(testing_util::Eventually([&] { return writer.Stats().stores[0].written == 4; }));
  EXPECT_TRUE(testing_util::Eventually([&] { return writer.Stats().writing == 1; }));
  EXPECT_FALSE(writer.Flush()) << "the other does not take them";
  EXPECT_EQ(Drawable(), 15) << "all but that which is being written to it";
  EXPECT_EQ(writer.Stats().stores[0].dropped(), 0u);
  EXPECT_EQ(writer.Stats().stores[1].dropped(), 3u);
  closed.Unlock();
}

// The queue is full of what a slow store has not taken: what neither has comes first.
TEST_F(SeveralStoresTest, WhatASlowOneHasNotTakenMakesRoomForWhatNoneHas) {
  GatedTier near({.layout = kWritesLayout}), far({.layout = kWritesLayout});
  WriteBehind writer({&near, &far}, *pool_, {.queue_share = 0.5, .threads = 1});
  MutexLock far_closed(far.gate);
  for (int i = 0; i < 8; ++i) Offer(writer, i);  // as many as may wait, one of them in the far one
  EXPECT_TRUE(testing_util::Eventually([&] { return writer.Stats().stores[0].written == 8; }));
  MutexLock near_closed(near.gate);
  for (int i = 8; i < 12; ++i) Offer(writer, i);
  EXPECT_EQ(writer.Stats().stores[1].dropped_full, 4u);
  EXPECT_EQ(writer.Stats().stores[0].dropped_full, 0u);
  near_closed.Unlock();
  EXPECT_TRUE(testing_util::Eventually([&] { return writer.Stats().stores[0].written == 12; }));
  far_closed.Unlock();
  EXPECT_TRUE(writer.Flush());
  EXPECT_EQ(far.Stats().chunks, 8u);
}

TEST_F(SeveralStoresTest, TheBacklogOfALaterOneKeepsNothingFromAnEarlierOne) {
  GatedTier near({.layout = kWritesLayout}), far({.layout = kWritesLayout});
  WriteBehind writer({&near, {&far, Writes::kSecondUse}}, *pool_,
                     {.queue_share = 0.5, .threads = 1});
  MutexLock far_closed(far.gate);
  for (int round = 0; round < 2; ++round) {
    for (int i = 4; i < 12; ++i) Offer(writer, i);
    EXPECT_TRUE(testing_util::Eventually([&] { return writer.Stats().stores[0].written == 8; }));
  }
  MutexLock near_closed(near.gate);
  for (int i = 0; i < 4; ++i) Offer(writer, i);  // nearer to the front, and met for the first time
  EXPECT_EQ(writer.Stats().stores[0].dropped_full, 0u);
  EXPECT_EQ(writer.Stats().stores[1].dropped_full, 4u);
}

TEST_F(SeveralStoresTest, WhatOthersAwaitIsUsedOnceThoughItIsOfferedTwice) {
  WriteBehind writer({&near_, {&far_, Writes::kSecondUse}}, *pool_);
  Offer(writer, 1, /*awaited=*/true);
  Offer(writer, 1);
  ASSERT_TRUE(writer.Flush());
  EXPECT_TRUE(Holds(near_, 1));
  EXPECT_FALSE(Holds(far_, 1));
  Offer(writer, 1, /*awaited=*/true);
  Offer(writer, 1);
  ASSERT_TRUE(writer.Flush());
  EXPECT_TRUE(Holds(far_, 1));
  EXPECT_EQ(writer.Stats().not_admitted, 0u);
}

TEST_F(SeveralStoresTest, WhatOthersAwaitIsNotAdmittedOnceThoughItIsOfferedTwice) {
  WriteBehind writer({{&near_, Writes::kSecondUse}}, *pool_);
  Offer(writer, 1, /*awaited=*/true);
  Offer(writer, 1);
  EXPECT_EQ(writer.Stats().not_admitted, 1u);
}

TEST_F(SeveralStoresTest, WhatOneHoldsIsNotCountedAsNotAdmitted) {
  WriteBehind writer({{&near_, Writes::kSecondUse}, {&far_, Writes::kNever}}, *pool_);
  Keep(near_, 1);
  Keep(far_, 2);
  for (int i : {1, 2, 3}) Offer(writer, i);
  EXPECT_EQ(writer.Stats().not_admitted, 1u);
}

// Counts which keys nobody need wait for any more.
class DisclaimedTier : public GatedTier {
 public:
  using GatedTier::GatedTier;
  void Disclaim(std::span<const ChunkKey> keys) override { disclaimed += keys.size(); }
  std::atomic<size_t> disclaimed = 0;
};

TEST_F(SeveralStoresTest, ClaimsOfWhatTheirStoreIsNotGivenEnd) {
  DisclaimedTier far({.layout = kWritesLayout});
  WriteBehind writer({&near_, &far}, *pool_, {.claims = 1});
  Offer(writer, 1, /*awaited=*/true);
  ASSERT_TRUE(writer.Flush());
  EXPECT_EQ(far.disclaimed, 0u);
  ASSERT_TRUE(near_.Evict(Key(1)));
  Offer(writer, 1, /*awaited=*/true);
  EXPECT_EQ(far.disclaimed, 1u) << "it has it";
}

TEST_F(SeveralStoresTest, ClaimsOfWhatTheirStoreHasNotTakenInTimeEnd) {
  DisclaimedTier far({.layout = kWritesLayout});
  WriteBehind writer({&near_, &far}, *pool_, {.threads = 1, .claims = 1});
  MutexLock closed(far.gate);
  for (int i = 0; i < 3; ++i) Offer(writer, i, /*awaited=*/true);
  EXPECT_TRUE(testing_util::Eventually([&] { return writer.Stats().stores[0].written == 3; }));
  EXPECT_TRUE(testing_util::Eventually([&] { return writer.Stats().writing == 1; }));
  EXPECT_EQ(Drawable(), 15) << "those that wait give theirs";
  EXPECT_EQ(far.disclaimed, 2u);
  closed.Unlock();
}

}  // namespace
}  // namespace kvcake
