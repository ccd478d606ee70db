#include "store/memory_tier.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <atomic>
#include <future>
#include <thread>

#include "kv/page_copier_testing.h"
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
    tier_ = std::make_unique<MemoryTier>(
        MemoryTierOptions{.layout = layout_, .memory = memory_, .copier = &copier_});
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

  const KvLayout layout_ = SmallLayout();
  const std::vector<ChunkKey> chain_ = Chain(10);
  FakeCopier copier_;
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

// The pages are memory that this process cannot touch; the copier knows where they really are.
TEST_F(MemoryTierTest, PagesAreTouchedByTheCopierOnly) {
  const size_t bytes = layout_.page_bytes();
  void* const mapped =
      mmap(nullptr, 2 * bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(mapped, MAP_FAILED);
  ASSERT_EQ(mprotect(mapped, bytes, PROT_NONE), 0);
  const std::span<std::byte> page(static_cast<std::byte*>(mapped), bytes);
  const std::span<std::byte> behind(page.data() + bytes, bytes);
  {
    FakeCopier copier(bytes);
    MemoryTier tier({.layout = layout_, .capacity_bytes = bytes, .copier = &copier});
    FillPage(chain_[0], behind);
    ASSERT_TRUE(tier.Put({chain_[0], Root(), NumericPath::kBf16Tensor, page}));
    std::memset(behind.data(), 0, bytes);
    std::promise<ReadResult> result;
    tier.Get({chain_[0], Root(), page, [&](ReadResult r) { result.set_value(std::move(r)); }});
    EXPECT_TRUE(result.get_future().get().status);
    PageBuffer read(layout_);
    std::ranges::copy(behind, read.span().begin());
    EXPECT_TRUE(HoldsChunk(chain_[0], read));
  }
  munmap(mapped, 2 * bytes);
}

TEST_F(MemoryTierTest, NoThreadOfTheTierWaitsForACopy) {
  Open(4, 4);
  copier_.Set({.hold_to_page = true});
  Reads reads;
  for (size_t i = 0; i < 4; ++i) Start(reads, i);
  ASSERT_TRUE(AwaitCopies(4)) << "all copies have been started";
  Start(reads, 5);  // not there
  EXPECT_EQ(reads.Wait(4).status.error().code, ErrorCode::kNotFound);
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(reads.answers(i), 0);
  copier_.Set({});
  for (size_t i = 0; i < 4; ++i) {
    ASSERT_TRUE(reads.Wait(i).status);
    EXPECT_TRUE(HoldsChunk(chain_[i], reads.landing(i)));
  }
}

TEST_F(MemoryTierTest, RoomIsNotMadeOfWhatIsBeingRead) {
  Open(2, 2);
  copier_.Set({.hold_to_page = true});
  Reads reads;
  Start(reads, 0);
  ASSERT_TRUE(AwaitCopies(1));
  ASSERT_TRUE(Put(2));  // in the place of 1, which is colder
  ASSERT_TRUE(Put(3));  // of 2, which is not, but 0 is being read
  EXPECT_TRUE(Holds(0));
  EXPECT_FALSE(Holds(1));
  EXPECT_FALSE(Holds(2));
  copier_.Set({});
  ASSERT_TRUE(reads.Wait(0).status);
  EXPECT_TRUE(HoldsChunk(chain_[0], reads.landing(0)));
  ASSERT_TRUE(Put(4));  // now it may go
  EXPECT_FALSE(Holds(0));
}

TEST_F(MemoryTierTest, AnEvictedChunkKeepsItsSlotForItsReads) {
  Open(2, 2);
  copier_.Set({.hold_to_page = true});
  Reads reads;
  Start(reads, 0);
  Start(reads, 0);
  ASSERT_TRUE(AwaitCopies(2));
  ASSERT_TRUE(tier_->Evict(chain_[0]));
  EXPECT_FALSE(Holds(0));
  EXPECT_EQ(tier_->Stats().chunks, 1u);
  ASSERT_TRUE(Put(2));  // in the place of 1
  ASSERT_TRUE(Put(0));  // of 2: its old slot is not free
  EXPECT_EQ(tier_->Stats().chunks, 1u);
  copier_.Set({});
  for (size_t i = 0; i < 2; ++i) {
    ASSERT_TRUE(reads.Wait(i).status);
    EXPECT_TRUE(HoldsChunk(chain_[0], reads.landing(i)));
  }
  ASSERT_TRUE(Put(3));  // free again, once
  EXPECT_EQ(tier_->Stats().chunks, 2u);
  ASSERT_TRUE(Put(4));
  EXPECT_EQ(tier_->Stats().chunks, 2u);
  EXPECT_EQ(Read(3), std::nullopt);
  EXPECT_EQ(Read(4), std::nullopt);
}

TEST_F(MemoryTierTest, PutFailsAtOnceWhileAllSlotsAreBeingRead) {
  Open(2, 2);
  copier_.Set({.hold_to_page = true});
  Reads reads;
  Start(reads, 0);
  Start(reads, 1);
  ASSERT_TRUE(AwaitCopies(2));
  const Status refused = Put(2);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kResourceExhausted);
  EXPECT_EQ(tier_->Stats().writes_failed, 1u);
  copier_.Set({});
  for (size_t i = 0; i < 2; ++i) {
    ASSERT_TRUE(reads.Wait(i).status);
    EXPECT_TRUE(HoldsChunk(chain_[i], reads.landing(i)));
  }
  EXPECT_TRUE(Put(2));
}

TEST_F(MemoryTierTest, ASlotThatIsBeingWrittenIsNobodyElses) {
  Open(2, 0);
  copier_.Set({.hold_from_page = true});
  auto first = std::async(std::launch::async, [&] { return Put(0).has_value(); });
  auto second = std::async(std::launch::async, [&] { return Put(0).has_value(); });
  ASSERT_TRUE(AwaitCopies(2));
  EXPECT_FALSE(Holds(0)) << "not before it can be read";
  EXPECT_EQ(Put(1).error().code, ErrorCode::kResourceExhausted);
  copier_.Set({});
  EXPECT_TRUE(first.get());
  EXPECT_TRUE(second.get());
  EXPECT_EQ(tier_->Stats().chunks, 1u);
  EXPECT_EQ(tier_->Stats().writes, 1u);
  EXPECT_EQ(Read(0), std::nullopt);
  EXPECT_TRUE(Put(1)) << "the slot of the one that came late is free";
  EXPECT_EQ(tier_->Stats().chunks, 2u);
}

TEST_F(MemoryTierTest, AReadThatIsBeingCopiedComesAlthoughCancelled) {
  Open(1, 1);
  copier_.Set({.hold_to_page = true});
  Reads reads;
  Start(reads, 0);
  ASSERT_TRUE(AwaitCopies(1));
  tier_->Cancel(reads.id(0));
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_EQ(reads.answers(0), 0) << "its landing is the copier's";
  copier_.Set({});
  ASSERT_TRUE(reads.Wait(0).status);
  EXPECT_TRUE(HoldsChunk(chain_[0], reads.landing(0)));
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
  copier_.Set({.hold_to_page = true});
  Reads reads;
  Start(reads, 0);
  Start(reads, 1);
  ASSERT_TRUE(AwaitCopies(2));
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
