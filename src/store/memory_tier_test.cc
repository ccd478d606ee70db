#include "store/memory_tier.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <thread>

#include "store/copied_tier_testing.h"
#include "store/tier_testing.h"

namespace kvcake {
namespace {

using namespace testing_util;

class MemoryTierTest : public testing::Test {
 protected:
  // With the first `chunks` of the chain.
  void Open(int slots, int chunks) {
    tier_.reset();
    memory_.assign(slots * layout_.page_bytes() + 1, std::byte{0});  // and a rest of no use
    tier_ = std::make_unique<MemoryTier>(MemoryTierOptions{
        .layout = layout_, .memory = memory_, .owner_quota_bytes = quota_, .copier = &copier_});
    for (int i = 0; i < chunks; ++i) ASSERT_TRUE(Put(i));
  }
  Status Put(size_t i) { return PutChunk(*tier_, layout_, chain_[i], ParentOf(chain_, i)); }
  size_t Start(Reads& reads, size_t i) {
    return reads.Start(*tier_, layout_, chain_[i], ParentOf(chain_, i));
  }
  bool Holds(size_t i) { return tier_->Residency(std::span(chain_).subspan(i, 1))[0]; }
  std::optional<ErrorCode> Read(size_t i) {
    return ReadBack(*tier_, layout_, chain_[i], ParentOf(chain_, i));
  }
  bool AwaitCopies(size_t n) {
    return Eventually([&] { return copier_.held() == n; });
  }
  // Reads whose copies have begun, and do not end before LetGo.
  void Hold(Reads& reads, const std::vector<size_t>& chunks) {
    copier_.Set({.hold_to_page = true});
    for (const size_t i : chunks) Start(reads, i);
    ASSERT_TRUE(AwaitCopies(chunks.size()));
  }
  void LetGo(Reads& reads, const std::vector<size_t>& chunks) {
    copier_.Set({});
    for (size_t read = 0; read < chunks.size(); ++read) {
      ASSERT_TRUE(reads.Wait(read).status);
      EXPECT_TRUE(HoldsChunk(chain_[chunks[read]], reads.landing(read)));
    }
  }

  const KvLayout layout_ = SmallLayout();
  const std::vector<ChunkKey> chain_ = Chain(10);
  FakeCopier copier_;
  uint64_t quota_ = 0;  // of each owner
  std::vector<std::byte> memory_;
  std::unique_ptr<MemoryTier> tier_;
};

TEST_F(MemoryTierTest, ItsOwnersMemoryIsItsCapacity) {
  Open(3, 5);
  EXPECT_EQ(tier_->Stats().chunks, 3u);
  EXPECT_EQ(tier_->Stats().evicted, 2u);
  for (size_t i = 0; i < 5; ++i) EXPECT_EQ(Holds(i), i >= 2) << i;
  for (size_t i = 2; i < 5; ++i) EXPECT_EQ(Read(i), std::nullopt) << i;
}

TEST_F(MemoryTierTest, PagesAreTouchedByTheCopierOnly) {
  ExpectPagesAreTouchedByTheCopierOnly(layout_, [this](PageCopier& copier) {
    return std::make_unique<MemoryTier>(MemoryTierOptions{
        .layout = layout_, .capacity_bytes = layout_.page_bytes(), .copier = &copier});
  });
}

TEST_F(MemoryTierTest, NoThreadOfTheTierWaitsForACopy) {
  Open(4, 4);
  Reads reads;
  Hold(reads, {0, 1, 2, 3});
  Start(reads, 5);  // not there
  EXPECT_EQ(reads.Wait(4).status.error().code, ErrorCode::kNotFound);
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(reads.answers(i), 0);
  LetGo(reads, {0, 1, 2, 3});
}

TEST_F(MemoryTierTest, RoomIsNotMadeOfWhatIsBeingRead) {
  Open(2, 2);
  Reads reads;
  Hold(reads, {0});
  ASSERT_TRUE(Put(2));  // in the place of 1, which is colder
  ASSERT_TRUE(Put(3));  // of 2, which is not, but 0 is being read
  EXPECT_TRUE(Holds(0));
  EXPECT_FALSE(Holds(1));
  EXPECT_FALSE(Holds(2));
  LetGo(reads, {0});
  ASSERT_TRUE(Put(4));  // now it may go
  EXPECT_FALSE(Holds(0));
}

TEST_F(MemoryTierTest, AnEvictedChunkKeepsItsSlotForItsReads) {
  Open(2, 2);
  Reads reads;
  Hold(reads, {0, 0});
  ASSERT_TRUE(tier_->Evict(chain_[0]));
  EXPECT_FALSE(Holds(0));
  EXPECT_EQ(tier_->Stats().chunks, 1u);
  ASSERT_TRUE(Put(2));  // in the place of 1
  ASSERT_TRUE(Put(0));  // of 2: its old slot is not free
  EXPECT_EQ(tier_->Stats().chunks, 1u);
  LetGo(reads, {0, 0});
  ASSERT_TRUE(Put(3));  // free again, once
  EXPECT_EQ(tier_->Stats().chunks, 2u);
  ASSERT_TRUE(Put(4));
  EXPECT_EQ(tier_->Stats().chunks, 2u);
  EXPECT_EQ(Read(3), std::nullopt);
  EXPECT_EQ(Read(4), std::nullopt);
}

TEST_F(MemoryTierTest, PutFailsAtOnceWhileAllSlotsAreBeingRead) {
  Open(2, 2);
  Reads reads;
  Hold(reads, {0, 1});
  const Status refused = Put(2);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kResourceExhausted);
  EXPECT_EQ(tier_->Stats().writes_failed, 1u);
  LetGo(reads, {0, 1});
  EXPECT_TRUE(Put(2));
}

TEST_F(MemoryTierTest, ASlotThatIsBeingWrittenIsNobodyElses) {
  quota_ = 2 * layout_.page_bytes();
  Open(2, 0);
  copier_.Set({.hold_from_page = true});
  const auto put = [&] { return PutChunk(*tier_, layout_, chain_[0], Root(), kAnn).has_value(); };
  auto first = std::async(std::launch::async, put);
  auto second = std::async(std::launch::async, put);
  ASSERT_TRUE(AwaitCopies(2));
  EXPECT_FALSE(Holds(0)) << "not before it can be read";
  EXPECT_EQ(Put(1).error().code, ErrorCode::kResourceExhausted);
  copier_.Set({});
  EXPECT_TRUE(first.get());
  EXPECT_TRUE(second.get());
  EXPECT_EQ(tier_->Stats().chunks, 1u);
  EXPECT_EQ(tier_->Stats().writes, 1u);
  EXPECT_EQ(tier_->Owners(), (std::vector<OwnedBytes>{{kAnn, layout_.page_bytes()}}));
  EXPECT_EQ(Read(0), std::nullopt);
  EXPECT_TRUE(Put(1)) << "the slot of the one that came late is free";
  EXPECT_EQ(tier_->Stats().chunks, 2u);
}

// What is being written cannot make room for another: both are there before either may go.
TEST_F(MemoryTierTest, AQuotaIsKeptByChunksThatAreWrittenSideBySide) {
  quota_ = layout_.page_bytes();
  Open(4, 0);
  copier_.Set({.hold_from_page = true});
  const auto put = [&](size_t i) {
    return PutChunk(*tier_, layout_, chain_[i], ParentOf(chain_, i), kAnn).has_value();
  };
  auto first = std::async(std::launch::async, put, 0);
  auto second = std::async(std::launch::async, put, 1);
  ASSERT_TRUE(AwaitCopies(2));
  copier_.Set({});
  EXPECT_TRUE(first.get());
  EXPECT_TRUE(second.get());
  EXPECT_EQ(tier_->Owners(), (std::vector<OwnedBytes>{{kAnn, layout_.page_bytes()}}));
  EXPECT_EQ(tier_->Stats().chunks, 1u);
}

TEST_F(MemoryTierTest, AReadThatIsBeingCopiedComesAlthoughCancelled) {
  Open(1, 1);
  Reads reads;
  Hold(reads, {0});
  tier_->Cancel(reads.id(0));
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_EQ(reads.answers(0), 0) << "its landing is the copier's";
  LetGo(reads, {0});
}

TEST_F(MemoryTierTest, AReadThatFailsCopiesNothing) {
  Open(2, 2);
  const uint64_t copied = copier_.bytes();
  EXPECT_EQ(ReadBack(*tier_, layout_, chain_[1], Root()), ErrorCode::kCorrupt);
  EXPECT_EQ(Read(1), ErrorCode::kNotFound) << "another parent: it is not kept";
  EXPECT_EQ(copier_.bytes(), copied);
}

TEST_F(MemoryTierTest, TheDestructorWaitsForCopies) {
  Open(2, 2);
  Reads reads;
  Hold(reads, {0, 1});
  std::atomic<bool> destroyed{false};
  std::thread destroyer([&] {
    tier_.reset();
    destroyed = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_FALSE(destroyed);
  EXPECT_EQ(reads.answers(0) + reads.answers(1), 0);
  copier_.Set({});
  destroyer.join();
  for (size_t i = 0; i < 2; ++i) {
    ASSERT_EQ(reads.answers(i), 1);
    EXPECT_TRUE(HoldsChunk(chain_[i], reads.landing(i)));
  }
}

// More chunks than slots, all of them wanted by everybody.
TEST_F(MemoryTierTest, RandomTrafficIsAnsweredOnceAndRight) {
  Open(6, 0);
  copier_.Set({.delay_max = Seconds(2e-4)});
  std::atomic<int> wrong{0}, hits{0}, kept{0};
  const auto traffic = [&](int seed) {
    std::mt19937 random(seed);
    Reads reads;
    std::vector<size_t> chunk_of;
    for (int n = 0; n < 150; ++n) {
      const size_t i = random() % chain_.size();
      const std::span<const ChunkKey> pinned = std::span(chain_).subspan(i, 1);
      switch (random() % 8) {
        case 0:
        case 1:
          kept += Put(i).has_value();
          break;
        case 2:
          wrong += !tier_->Evict(chain_[i]).has_value();
          break;
        case 3:
          tier_->Pin(pinned);
          (void)tier_->Residency(chain_);
          tier_->Unpin(pinned);
          break;
        default:
          chunk_of.push_back(i);
          if (const size_t read = Start(reads, i); random() % 4 == 0) {
            tier_->Cancel(reads.id(read));
          } else if (random() % 4 == 0) {
            reads.Wait(read);
          }
      }
    }
    for (size_t read = 0; read < chunk_of.size(); ++read) {
      const ReadResult result = reads.Wait(read);
      wrong += reads.answers(read) != 1;
      if (!result.status) {
        wrong += result.status.error().code != ErrorCode::kNotFound &&
                 result.status.error().code != ErrorCode::kCancelled;
        continue;
      }
      ++hits;
      wrong += !HoldsChunk(chain_[chunk_of[read]], reads.landing(read));
    }
  };
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) threads.emplace_back(traffic, t);
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(hits, 0);
  EXPECT_GT(kept, 6);
  EXPECT_LE(tier_->Stats().chunks, 6u);
  for (const ChunkKey& key : chain_) EXPECT_TRUE(tier_->Evict(key));
  for (size_t i = 0; i < 6; ++i) EXPECT_TRUE(Put(i)) << "every slot has been let go of";
  for (size_t i = 0; i < 6; ++i) EXPECT_EQ(Read(i), std::nullopt);
}

}  // namespace
}  // namespace kvcake
