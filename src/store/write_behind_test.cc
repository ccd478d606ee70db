#include "store/write_behind.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <nlohmann/json.hpp>

#include "base/log_testing.h"
#include "base/mutex.h"
#include "kv/page_copier_testing.h"
#include "store/memory_tier.h"
#include "store/slow_tiers_testing.h"
#include "store/staged_tier.h"
#include "store/tier_testing.h"
#include "store/write_behind_testing.h"

namespace kvcake {
namespace {

TEST_F(WriteBehindTest, OwnersComeToBothTiersWithTheirChunks) {
  MemoryTierOptions options = Options();
  options.owner_quota_bytes = 1 << 30;
  MemoryTier store(options), ram(options);
  WriteBehind writer({&store}, *pool_, {}, &ram);
  writer.Offer({Key(0), KvIdentity().Root(), 0, NumericPath::kF32, std::move(*pool_->Draw()), 7});
  Enqueue(writer, 1);
  ASSERT_TRUE(Flushed(writer));
  for (const Tier* tier : {&store, &ram}) {
    EXPECT_EQ(tier->Stats().chunks, 2u);
    EXPECT_EQ(tier->Owners(), (std::vector<OwnedBytes>{{7, kWriteLayout.page_bytes()}}));
  }
}

TEST_F(WriteBehindTest, FlushReturnsWhenAllIsWritten) {
  WriteBehind writer({&tier_}, *pool_, {});
  for (int i = 0; i < 8; ++i) Enqueue(writer, i);
  writer.Flush();
  EXPECT_EQ(tier_.Stats().chunks, 8u);
  EXPECT_EQ(writer.Stats().written, 8u);
  EXPECT_EQ(pool_->Stats().referenced, 0u);
}

TEST_F(WriteBehindTest, AFullQueueDropsAndNobodyWaits) {
  WriteBehind writer({&tier_}, *pool_, {.queue_share = 3.0 / 16});
  {
    MutexLock closed(tier_.gate);
    for (int i = 0; i < 8; ++i) Enqueue(writer, i);  // returns although nothing can be written
    EXPECT_EQ(writer.Stats().dropped_full, 5u);
    EXPECT_EQ(pool_->Stats().referenced, 3u) << "dropped pages go back at once";
  }
  writer.Flush();
  EXPECT_EQ(writer.Stats().written, 3u);
}

// The front of a prompt is computed sooner than its back.
TEST_F(WriteBehindTest, WhatIsWorthLeastIsDropped) {
  std::vector<PageHandle> drawn;
  {
    WriteBehind writer({&tier_}, *pool_, {.queue_share = 4.0 / 16, .threads = 1});
    MutexLock closed(tier_.gate);
    Enqueue(writer, 0);
    EXPECT_TRUE(testing_util::Eventually([&] { return writer.Stats().writing == 1; }));
    for (int i : {5, 2, 9, 1, 7}) Enqueue(writer, i);  // 3 may wait beside what is being written
    EXPECT_EQ(writer.Stats().dropped_full, 2u) << "2 and 1";
    for (int i = 0; i < 12 + 2; ++i) drawn.push_back(std::move(*pool_->Draw()));
    EXPECT_EQ(writer.Stats().dropped_wanted, 2u) << "no more than needed: 5 and 7";
    EXPECT_EQ(writer.Stats().queued, 1u);
  }
  EXPECT_TRUE(Holds(tier_, 9));
  EXPECT_EQ(tier_.Stats().chunks, 2u) << "what was being written";
}

TEST_F(WriteBehindTest, AllPagesAreGivenButThoseThatAreBeingWrittenOrUsed) {
  WriteBehind writer({&tier_}, *pool_, {.threads = 2});
  {
    MutexLock closed(tier_.gate);
    for (int i = 0; i < 7; ++i) Enqueue(writer, i);
    EXPECT_TRUE(testing_util::Eventually([&] { return writer.Stats().writing == 2; }));
    const auto used = pool_->Draw();
    writer.Offer({Key(7), KvIdentity().Root(), 0, NumericPath::kF32, used->Share()});
    EXPECT_EQ(DrawAll(), 16 - 2 - 1);
    EXPECT_EQ(writer.Stats().dropped_wanted, 5u);
    EXPECT_EQ(writer.Stats().queued, 1u);
  }
  writer.Flush();
  EXPECT_EQ(tier_.Stats().chunks, 8 - writer.Stats().dropped());
}

TEST_F(WriteBehindTest, AChunkIsQueuedOnceHoweverOftenItIsOffered) {
  for (const bool with_ram : {false, true}) {
    SCOPED_TRACE(with_ram);
    GatedTier store(Options()), ram(Options());
    WriteBehind writer({&store}, *pool_, {.queue_share = 7.0 / 16, .threads = 2},
                       with_ram ? &ram : nullptr);
    MutexLock closed(store.gate), ram_closed(ram.gate);
    auto document = Document(7);
    Offer(writer, document);  // two begin to be written to each
    EXPECT_TRUE(testing_util::Eventually([&] {
      const WriteBehindStats stats = writer.Stats();
      return stats.writing == 2 && stats.in_flight() == 7;
    }));
    Offer(writer, document);
    Offer(writer, document);
    EXPECT_EQ(writer.Stats().in_flight(), 7u);
    EXPECT_EQ(writer.Stats().dropped_full, 0u) << "they crowd out nothing";
    document.clear();
    EXPECT_EQ(DrawAll(), 16 - 2);
    ram_closed.Unlock();
    closed.Unlock();
    writer.Flush();
    EXPECT_EQ(store.Stats().chunks, 7 - writer.Stats().dropped_wanted);
    EXPECT_EQ(writer.Stats().written, store.Stats().chunks) << "each was written once";
  }
}

TEST_F(WriteBehindTest, BothTiersShareTheQueue) {
  MemoryTier store(Options());
  GatedTier ram(Options());
  const auto page = pool_->Draw();
  for (int i = 0; i < 12; ++i) {
    Tier& holder = i < 6 ? static_cast<Tier&>(ram) : store;
    ASSERT_TRUE(holder.Put({.key = Key(i),
                            .parent = KvIdentity().Root(),
                            .numeric_path = NumericPath::kF32,
                            .page = {pool_->Data(page->id()), kWriteLayout.page_bytes()}}));
  }
  WriteBehind writer({&store}, *pool_, {.queue_share = 6.0 / 16, .threads = 0}, &ram);
  {
    MutexLock closed(ram.gate);
    for (int i = 0; i < 12; ++i) Enqueue(writer, i);  // six for each, none for both
    EXPECT_EQ(pool_->Stats().referenced, 1u + 6u);
    EXPECT_EQ(writer.Stats().dropped_full, 6u) << "what waits for the store is worth less";
    EXPECT_EQ(writer.Stats().ram.dropped_full, 0u);
    for (int i = 12; i < 14; ++i) Enqueue(writer, i);  // for both
    EXPECT_EQ(writer.Stats().queued + writer.Stats().writing, 6u) << "a page each, counted once";
    EXPECT_EQ(writer.Stats().ram.dropped_full, 2u) << "then what waits for the RAM tier";
  }
  EXPECT_TRUE(testing_util::Eventually([&] {
    const WriteBehindStats stats = writer.Stats();
    return stats.writing == 0 && stats.queued == 2;
  }));
  EXPECT_EQ(DrawAll(), 15);
  EXPECT_EQ(writer.Stats().dropped_wanted, 2u);
  EXPECT_EQ(writer.Stats().ram.dropped_wanted, 0u);
}

// What a store copies before it writes needs its page no longer, however long that takes.
TEST_F(WriteBehindTest, AStagedStoreThatHangsHoldsNoPage) {
  testing_util::FakeCopier copier;
  const StagedTierOptions options{.read_slots = 1, .write_slots = 2, .layout = kWriteLayout};
  const std::unique_ptr<std::byte, void (*)(void*)> staging(
      static_cast<std::byte*>(aligned_alloc(4096, options.staging_bytes())), free);
  auto gated = std::make_unique<GatedTier>(Options());
  GatedTier& inner = *gated;
  StagedTier store(std::move(gated), copier, std::span(staging.get(), options.staging_bytes()),
                   options);
  WriteBehind writer({&store}, *pool_, {.threads = 8});
  MutexLock closed(inner.gate);
  auto document = Document(7);
  for (int i = 0; i < 7; ++i) {
    testing_util::FillPage(Key(i), {pool_->Data(document[i].id()), kWriteLayout.page_bytes()});
  }
  Offer(writer, document);
  EXPECT_TRUE(testing_util::Eventually([&] { return writer.Stats().copied == 2; }));
  EXPECT_EQ(writer.Stats().writing, 0u) << "no more writers than it has slots";
  Offer(writer, document);
  EXPECT_EQ(writer.Stats().queued, 5u);
  EXPECT_EQ(writer.Stats().in_flight(), 7u) << "what is being written is not queued again";
  document.clear();
  {
    std::vector<PageHandle> drawn;
    while (auto page = pool_->Draw()) {
      std::memset(pool_->Data(page->id()), 0x55, kWriteLayout.page_bytes());
      drawn.push_back(std::move(*page));
    }
    EXPECT_EQ(drawn.size(), 16u);
  }
  closed.Unlock();
  EXPECT_TRUE(Flushed(writer));
  EXPECT_EQ(writer.Stats().written, 2u);
  for (int i : {0, 1}) {
    EXPECT_EQ(testing_util::ReadBack(store, kWriteLayout, Key(i), KvIdentity().Root()),
              std::nullopt);
  }
}

TEST_F(WriteBehindTest, DrawingInVainWakesNoWriter) {
  const auto switches = [] {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_nvcsw;
  };
  WriteBehind writer({&tier_}, *pool_, {.threads = 8});
  const auto document = Document(16);
  constexpr int kDraws = 4000;
  const auto before = switches();
  for (int i = 0; i < kDraws; ++i) {
    ASSERT_FALSE(pool_->Draw());
    std::this_thread::yield();  // to whoever has been woken
  }
  EXPECT_LT(switches() - before, kDraws / 4) << "threads that sleep go on sleeping";
}

TEST_F(WriteBehindTest, FailedWritesAreCountedAndLetTheirPagesGo) {
  WriteBehind writer({&tier_}, *pool_, {});
  tier_.fails = true;
  for (int i = 0; i < 3; ++i) Enqueue(writer, i);
  writer.Flush();
  tier_.fails = false;
  Enqueue(writer, 3);
  writer.Flush();
  EXPECT_EQ(writer.Stats().failed, 3u);
  EXPECT_EQ(writer.Stats().written, 1u);
  EXPECT_EQ(pool_->Stats().referenced, 0u);
}

TEST_F(WriteBehindTest, WhatIsWrongWithATierIsSaidOnceAndNotForEachChunk) {
  testing_util::CapturedLog log;
  GatedTier store(Options());
  store.fails = true;
  WriteBehind writer({&store}, *pool_, {.queue_share = 0.25, .threads = 1});
  for (int i = 0; i < 3; ++i) {
    Enqueue(writer, i);
    ASSERT_TRUE(writer.Flush());
  }
  EXPECT_EQ(log.Count("a chunk could not be kept in memory: no space left"), 1);
  MutexLock closed(store.gate);
  for (int i = 3; i < 12; ++i) Enqueue(writer, i);  // four may wait
  EXPECT_GT(writer.Stats().dropped_full, 1u);
  EXPECT_EQ(log.Count("the store memory is slower than new chunks come"), 1);
}

// Keeps where in their prompts its chunks begin, and which arithmetic made them.
class PlacesTier : public MemoryTier {
 public:
  using MemoryTier::MemoryTier;
  Status Put(const ChunkWrite& chunk) override {
    first_tokens.push_back(chunk.position);
    paths.push_back(chunk.numeric_path);
    return MemoryTier::Put(chunk);
  }
  std::vector<int64_t> first_tokens;
  std::vector<NumericPath> paths;
};

TEST_F(WriteBehindTest, ATierIsToldAtWhichTokenOfItsPromptAChunkBeginsAndHowItWasComputed) {
  PlacesTier store(Options());
  WriteBehind writer({&store}, *pool_, {.threads = 1});
  for (int i : {0, 1, 5}) {
    Enqueue(writer, i);
    ASSERT_TRUE(writer.Flush());
  }
  EXPECT_EQ(store.first_tokens, (std::vector<int64_t>{0, 16, 80}));
  EXPECT_EQ(store.paths, std::vector(3, NumericPath::kF32));
}

TEST_F(WriteBehindTest, WhatIsKeptAlreadyIsNotWrittenAgain) {
  WriteBehind writer({&tier_}, *pool_);
  for (int round = 0; round < 3; ++round) {
    Enqueue(writer, 1);
    writer.Flush();
  }
  EXPECT_EQ(writer.Stats().written, 1u);
}

TEST_F(WriteBehindTest, SecondUseWritesWhatComesUpAgain) {
  WriteBehind writer({{&tier_, StoreWrites::kSecondUse}}, *pool_, {.seen_max = 4});
  for (int i = 0; i < 4; ++i) Enqueue(writer, i);
  writer.Flush();
  EXPECT_EQ(tier_.Stats().chunks, 0u);
  EXPECT_EQ(writer.Stats().not_admitted, 4u);
  EXPECT_EQ(pool_->Stats().referenced, 0u);
  Enqueue(writer, 2);
  writer.Flush();
  EXPECT_TRUE(Holds(tier_, 2));
  for (int i = 10; i < 14; ++i) Enqueue(writer, i);  // as many as are remembered
  Enqueue(writer, 0);
  writer.Flush();
  EXPECT_EQ(tier_.Stats().chunks, 1u) << "forgotten";

  // Another process goes on with what this one has seen.
  WriteBehind next({{&tier_, StoreWrites::kSecondUse}}, *pool_);
  ASSERT_TRUE(next.SeenFromJson(writer.SeenToJson()));
  EXPECT_FALSE(next.SeenFromJson({1, "x"}));
  Enqueue(next, 13);
  Enqueue(next, 1);
  next.Flush();
  EXPECT_EQ(tier_.Stats().chunks, 2u);
}

TEST_F(WriteBehindTest, NeverWritesNothing) {
  WriteBehind writer({{&tier_, StoreWrites::kNever}}, *pool_);
  for (int round = 0; round < 2; ++round) Enqueue(writer, 1);
  writer.Flush();
  EXPECT_EQ(tier_.Stats().chunks, 0u);
}

TEST_F(WriteBehindTest, WhatAnotherTierHoldsIsCopiedToTheFirstOnlyWhenPromoting) {
  MemoryTier slow(Options());
  {
    WriteBehind writer({&slow}, *pool_);
    Enqueue(writer, 1);
  }
  for (const bool promote : {false, true}) {
    WriteBehind writer({&tier_, {&slow, StoreWrites::kNever}}, *pool_, {.promote = promote});
    Enqueue(writer, 1);
    Enqueue(writer, 2 + promote);
    writer.Flush();
    EXPECT_EQ(Holds(tier_, 1), promote);
    EXPECT_TRUE(Holds(tier_, 2 + promote)) << "new ones go to the first";
  }
  EXPECT_EQ(slow.Stats().chunks, 1u);
}

TEST_F(WriteBehindTest, ChunksGoToTheRamTierAndTheStore) {
  MemoryTier store(Options());
  WriteBehind writer({&store}, *pool_, {}, &tier_);
  Enqueue(writer, 1);
  writer.Flush();
  EXPECT_TRUE(Holds(tier_, 1));
  EXPECT_TRUE(Holds(store, 1));
  EXPECT_EQ(writer.Stats().written, 1u) << "of the store";
  EXPECT_EQ(pool_->Stats().referenced, 0u);
  // Whichever has lost it gets it back.
  ASSERT_TRUE(tier_.Evict(Key(1)));
  Enqueue(writer, 1);
  writer.Flush();
  EXPECT_TRUE(Holds(tier_, 1));
  EXPECT_EQ(writer.Stats().written, 1u);
  ASSERT_TRUE(store.Evict(Key(1)));
  Enqueue(writer, 1);
  writer.Flush();
  EXPECT_TRUE(Holds(store, 1));
  EXPECT_EQ(tier_.Stats().writes, 2u);
  EXPECT_EQ(store.Stats().writes, 2u);
}

TEST_F(WriteBehindTest, WhatIsWrittenToStoresIsNoRuleForTheRamTier) {
  MemoryTier first(Options()), second(Options());
  {
    WriteBehind writer({&second}, *pool_);
    Enqueue(writer, 1);
  }
  for (const StoreWrites writes : {StoreWrites::kNever, StoreWrites::kSecondUse}) {
    WriteBehind writer({{&first, writes}, {&second, StoreWrites::kNever}}, *pool_, {}, &tier_);
    Enqueue(writer, 1);  // loaded from a store, and not promoted
    Enqueue(writer, 2);  // new, and not admitted
    writer.Flush();
    for (int i : {1, 2}) {
      EXPECT_TRUE(Holds(tier_, i)) << i;
      EXPECT_FALSE(Holds(first, i)) << i;
      ASSERT_TRUE(tier_.Evict(Key(i)));
    }
    EXPECT_EQ(writer.Stats().not_admitted, 1u);
  }
}

TEST_F(WriteBehindTest, ATierThatFailsKeepsNothingFromTheOther) {
  GatedTier store(Options());
  WriteBehind writer({&store}, *pool_, {}, &tier_);
  store.fails = true;
  Enqueue(writer, 1);
  writer.Flush();
  EXPECT_TRUE(Holds(tier_, 1));
  EXPECT_EQ(writer.Stats().failed, 1u);
  store.fails = false;
  tier_.fails = true;
  Enqueue(writer, 2);
  writer.Flush();
  EXPECT_TRUE(Holds(store, 2));
  EXPECT_EQ(writer.Stats().failed, 1u);
  EXPECT_EQ(pool_->Stats().referenced, 0u);
}

TEST_F(WriteBehindTest, TheRamTiersChunksAreGivenUpOnlyWhenTheStoreHasNone) {
  MemoryTier store(Options()), ram(Options());
  WriteBehind writer({&store}, *pool_, {.queue_share = 1, .threads = 0}, &tier_);
  MutexLock closed(tier_.gate);
  for (int i = 0; i < 4; ++i) Enqueue(writer, i);  // for both; two are being written to the RAM
  EXPECT_TRUE(testing_util::Eventually([&] { return writer.Stats().writing == 2; }));
  {
    const auto page = pool_->Draw();
    ASSERT_TRUE(store.Put({.key = Key(10),
                           .parent = KvIdentity().Root(),
                           .numeric_path = NumericPath::kF32,
                           .page = {pool_->Data(page->id()), kWriteLayout.page_bytes()}}));
  }
  Enqueue(writer, 10);  // for the RAM tier alone
  EXPECT_EQ(DrawAll(), 16 - 2);
  EXPECT_EQ(writer.Stats().writing, 2u) << "to the RAM tier; they wait for the store, too";
  EXPECT_EQ(writer.Stats().queued, 0u) << "a page is counted once";
  closed.Unlock();
  EXPECT_TRUE(testing_util::Eventually([&] { return writer.Stats().writing == 0; }));
  EXPECT_EQ(tier_.Stats().chunks, 2u);
  EXPECT_EQ(writer.Stats().dropped_wanted, 2u) << "of the store";
  EXPECT_EQ(DrawAll(), 16);
  EXPECT_EQ(writer.Stats().dropped_wanted, 4u);
}

TEST_F(WriteBehindTest, AStoreThatHangsKeepsNothingFromTheRamTier) {
  GatedTier store(Options());
  WriteBehind writer({&store}, *pool_, {.threads = 1, .patience = Seconds(0.02)}, &tier_);
  MutexLock closed(store.gate);
  for (int i = 0; i < 4; ++i) Enqueue(writer, i);
  EXPECT_FALSE(writer.Flush());
  EXPECT_TRUE(testing_util::Eventually([&] { return tier_.Stats().chunks == 4; }));
  EXPECT_TRUE(testing_util::Eventually([&] { return writer.Stats().writing == 1; }));
  EXPECT_EQ(DrawAll(), 15);
  closed.Unlock();
  EXPECT_TRUE(Flushed(writer));
}

TEST_F(WriteBehindTest, TheRamTierNeedsNoStore) {
  WriteBehind writer({}, *pool_, {}, &tier_);
  for (int i = 0; i < 8; ++i) Enqueue(writer, i);
  EXPECT_TRUE(writer.Flush());
  EXPECT_EQ(tier_.Stats().chunks, 8u);
  EXPECT_EQ(writer.Stats().written + writer.Stats().in_flight(), 0u);
}

}  // namespace
}  // namespace kvcake
