// What flushes and the end wait for, and for how long.
#include <atomic>
#include <functional>
#include <future>
#include <thread>

#include "base/log_testing.h"
#include "store/memory_tier.h"
#include "store/write_behind_testing.h"

namespace kvcake {
namespace {

class WriteEndTest : public WriteBehindTest {
 protected:
  GatedTier other_{Options()};
};

TEST_F(WriteEndTest, DestructionWritesWhatIsQueued) {
  {
    WriteBehind writer({&tier_}, *pool_, {});
    for (int i = 0; i < 8; ++i) Enqueue(writer, i);
  }
  EXPECT_EQ(tier_.Stats().chunks, 8u);
}

TEST_F(WriteEndTest, WhatNobodyWasThereToWriteIsNotSpareAnyMore) {
  const auto pages = Document(2);
  {
    WriteBehind writer({&tier_}, *pool_, {.threads = 0});
    Offer(writer, pages);
    Enqueue(writer, 2);
  }
  EXPECT_EQ(pool_->Stats().referenced, 2u);
  EXPECT_FALSE(pool_->LeastSpare());
}

TEST_F(WriteEndTest, EachStoreThatDoesNotTakeItsWritesIsToldOf) {
  testing_util::CapturedLog log;
  WriteBehind writer({&tier_, &other_}, *pool_, {.threads = 1, .patience = Seconds(0.02)});
  MutexLock closed(tier_.gate), others_closed(other_.gate);
  Enqueue(writer, 0);
  EXPECT_FALSE(writer.Flush());
  EXPECT_EQ(log.Count("does not take what is written to it: 1 chunks may not be kept"), 2);
  others_closed.Unlock();
  closed.Unlock();
  EXPECT_TRUE(Flushed(writer));
}

// Takes its time for each write, and takes them all.
class TricklingTier : public MemoryTier {
 public:
  using MemoryTier::MemoryTier;
  Status Put(const ChunkWrite& chunk) override {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    return MemoryTier::Put(chunk);
  }
};

TEST_F(WriteEndTest, WritesThatTrickleDoNotMakeAnEndWaitForAllOfThem) {
  TricklingTier store(Options());
  const auto pages = Document(8);
  {
    WriteBehind writer({&store}, *pool_, {.threads = 1, .patience = Seconds(3600)});
    Offer(writer, pages);
    EXPECT_FALSE(writer.Flush(/*until=*/Clock::Real().Now()));
  }
  EXPECT_FALSE(Holds(store, 7)) << "nor the destructor";
  {
    WriteBehind writer({&store}, *pool_, {.threads = 1, .patience = Seconds(0)});
    Offer(writer, pages);
  }
  EXPECT_FALSE(Holds(store, 7)) << "its patience is for all of them";
  {
    WriteBehind writer({&store}, *pool_, {.threads = 1, .patience = Seconds(3600)});
    Offer(writer, pages);
    EXPECT_FALSE(writer.Flush(/*until=*/Clock::Real().Now()));
    EXPECT_TRUE(writer.Flush());
  }
  EXPECT_TRUE(Holds(store, 7));
}

TEST_F(WriteEndTest, AFlushThatComesToItsEndMakesUpForOneThatGaveUp) {
  TricklingTier store(Options());
  {
    WriteBehind writer({&store}, *pool_, {.threads = 1, .patience = Seconds(3600)});
    for (int i = 0; i < 3; ++i) Enqueue(writer, i);
    EXPECT_FALSE(writer.Flush(/*until=*/Clock::Real().Now()));
    EXPECT_TRUE(writer.Flush());
    for (int i = 3; i < 6; ++i) Enqueue(writer, i);
  }
  EXPECT_EQ(store.Stats().chunks, 6u) << "the store takes them again: the end waits for it";
}

TEST_F(WriteEndTest, AFlushEndsWhenWhatItWaitsForIsGivenUp) {
  WriteBehind writer({&tier_}, *pool_, {.threads = 0, .patience = Seconds(3600)});
  Enqueue(writer, 0);
  auto flush = std::async(std::launch::async, [&] { return writer.Flush(); });
  EXPECT_EQ(flush.wait_for(std::chrono::milliseconds(50)), std::future_status::timeout);
  EXPECT_EQ(DrawAll(), 16);
  EXPECT_TRUE(flush.get());
}

class FailingTier : public MemoryTier {
 public:
  using MemoryTier::MemoryTier;
  std::function<void()> before;

  Status Put(const ChunkWrite&) override {
    before();
    return Fail(ErrorCode::kIo, "no answer");
  }
};

// As where a store takes connections and says nothing: each fails after a while, and that is no
// progress. Here there is a next one as long as anybody waits.
TEST_F(WriteEndTest, WritesThatFailDoNotMakeAnEndWaitForAllOfThem) {
  FailingTier tier(Options());
  std::atomic<bool> ended = false;
  WriteBehind writer({&tier}, *pool_, {.queue_share = 1, .threads = 1, .patience = Seconds(0.02)});
  tier.before = [&, next = 1]() mutable {
    if (!ended) Enqueue(writer, next++);
  };
  Enqueue(writer, 0);
  EXPECT_FALSE(writer.Flush());
  ended = true;
}

TEST_F(WriteEndTest, FlushGivesUpWaitingForWritesThatDoNotReturn) {
  WriteBehind writer({&tier_}, *pool_, {.threads = 1, .patience = Seconds(0.02)});
  MutexLock closed(tier_.gate);
  for (int i = 0; i < 3; ++i) Enqueue(writer, i);
  EXPECT_FALSE(writer.Flush());
  closed.Unlock();
  EXPECT_TRUE(Flushed(writer));
  EXPECT_EQ(tier_.Stats().chunks, 3u);
}

}  // namespace
}  // namespace kvcake
