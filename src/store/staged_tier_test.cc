#include "store/staged_tier.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <thread>

#include "base/mutex.h"
#include "store/copied_tier_testing.h"
#include "store/faulty_tier_testing.h"
#include "store/memory_tier.h"
#include "store/slow_tiers_testing.h"
#include "store/tier_testing.h"

namespace kvcake {
namespace {

using namespace testing_util;

// Counts reads, and can hold them; one that is held does not heed Cancel, like a device that has
// its buffer already.
class WatchedTier : public TierDecorator {
 public:
  using TierDecorator::TierDecorator;

  ReadId Get(ReadRequest request) override {
    CHECK(reinterpret_cast<uintptr_t>(request.landing.data()) % kSlabAlign == 0);
    request.done = [this, done = std::move(request.done)](ReadResult result) {
      {
        MutexLock lock(mutex_);
        --in_flight_;
      }
      done(std::move(result));
    };
    ReadId id;
    {
      MutexLock lock(mutex_);
      id = static_cast<ReadId>(++gets_);
      in_flight_max_ = std::max(in_flight_max_.load(), ++in_flight_);
      if (hold_) {
        held_.emplace_back(id, std::move(request));
        return id;
      }
    }
    ForwardGet(id, std::move(request));
    return id;
  }
  void Cancel(ReadId id) override {
    ++cancels_;
    ForwardCancel(id);
  }

  void Hold() {
    MutexLock lock(mutex_);
    hold_ = true;
  }
  void Release() {
    std::vector<std::pair<ReadId, ReadRequest>> released;
    {
      MutexLock lock(mutex_);
      hold_ = false;
      released.swap(held_);
    }
    for (auto& [id, request] : released) ForwardGet(id, std::move(request));
  }
  int gets() const { return gets_; }
  int cancels() const { return cancels_; }
  int in_flight_max() const { return in_flight_max_; }

 private:
  std::atomic<int> gets_{0}, cancels_{0}, in_flight_max_{0};

  Mutex mutex_;
  bool hold_ GUARDED_BY(mutex_) = false;
  std::vector<std::pair<ReadId, ReadRequest>> held_ GUARDED_BY(mutex_);
  int in_flight_ GUARDED_BY(mutex_) = 0;
};

class StagedTierTest : public testing::Test {
 protected:
  // A watched tier of the chain, with or without faults.
  void Open(int read_slots, int write_slots = 1, FaultyTierOptions faults = {}) {
    tier_.reset();
    auto memory = std::make_unique<MemoryTier>(MemoryTierOptions{.layout = layout_});
    for (size_t i = 0; i < chain_.size(); ++i) {
      ASSERT_TRUE(PutChunk(*memory, layout_, chain_[i], ParentOf(chain_, i)));
    }
    auto watched =
        std::make_unique<WatchedTier>(std::make_unique<FaultyTier>(std::move(memory), faults));
    inner_ = watched.get();
    const StagedTierOptions options{
        .read_slots = read_slots, .write_slots = write_slots, .layout = layout_};
    tier_ = std::make_unique<StagedTier>(std::move(watched), copier_, Staging(options), options);
  }
  size_t Start(Reads& reads, size_t i, std::optional<LayerRange> layers = {}) {
    return reads.Start(*tier_, layout_, chain_[i], ParentOf(chain_, i), layers);
  }
  ErrorCode CodeOf(const ReadResult& result) {
    EXPECT_FALSE(result.status);
    return result.status ? ErrorCode::kIo : result.status.error().code;
  }
  bool IsUntouched(const PageBuffer& landing) {
    return std::ranges::equal(landing.span(), PageBuffer(layout_).span());
  }
  // For what must not happen, to have the time to.
  static void Linger() { std::this_thread::sleep_for(std::chrono::milliseconds(5)); }

  std::span<std::byte> Staging(const StagedTierOptions& options) {
    const uint64_t bytes = options.staging_bytes();
    staging_.reset(static_cast<std::byte*>(aligned_alloc(4096, bytes)));
    return {staging_.get(), bytes};
  }

  const KvLayout layout_ = SmallLayout();
  const std::vector<ChunkKey> chain_ = Chain(10);
  FakeCopier copier_;
  std::unique_ptr<std::byte, void (*)(void*)> staging_{nullptr, free};
  std::unique_ptr<StagedTier> tier_;
  WatchedTier* inner_ = nullptr;
};

TEST_F(StagedTierTest, DoneAndTheNextUseOfTheSlotWaitForTheCopy) {
  Open(1);
  copier_.Set({.hold_to_page = true});
  Reads reads;
  Start(reads, 0);
  Start(reads, 1);
  ASSERT_TRUE(Eventually([&] { return copier_.held() == 1; }));
  Linger();
  EXPECT_EQ(reads.answers(0), 0);
  EXPECT_TRUE(IsUntouched(reads.landing(0)));
  EXPECT_EQ(inner_->gets(), 1);
  copier_.Set({});
  for (size_t i = 0; i < 2; ++i) {
    const ReadResult result = reads.Wait(i);
    ASSERT_TRUE(result.status);
    EXPECT_EQ(result.bytes, layout_.page_bytes());
    EXPECT_EQ(result.numeric_path, NumericPath::kF32Fma);
    EXPECT_TRUE(HoldsChunk(chain_[i], reads.landing(i)));
  }
}

TEST_F(StagedTierTest, PagesAreTouchedByTheCopierOnly) {
  ExpectPagesAreTouchedByTheCopierOnly(layout_, [this](PageCopier& copier) {
    const StagedTierOptions options{.layout = layout_};
    return std::make_unique<StagedTier>(
        std::make_unique<MemoryTier>(MemoryTierOptions{.layout = layout_}), copier,
        Staging(options), options);
  });
}

TEST_F(StagedTierTest, NoMoreReadsThanSlotsReachTheInnerTierAndTheRestKeepsItsOrder) {
  Open(3);
  EXPECT_EQ(tier_->max_reads_in_flight(), 3);
  EXPECT_EQ(tier_->max_read_bytes_in_flight(), 3 * layout_.page_bytes());
  inner_->Hold();
  Reads reads;
  for (size_t i = 0; i < chain_.size(); ++i) Start(reads, i);
  ASSERT_TRUE(Eventually([&] { return inner_->gets() == 3; }));
  Linger();
  EXPECT_EQ(inner_->gets(), 3);
  inner_->Release();
  for (size_t i = 0; i < chain_.size(); ++i) {
    ASSERT_TRUE(reads.Wait(i).status);
    EXPECT_TRUE(HoldsChunk(chain_[i], reads.landing(i)));
  }
  EXPECT_LE(inner_->in_flight_max(), 3);

  Open(1);
  Reads one_by_one;
  for (size_t i = 0; i < chain_.size(); ++i) Start(one_by_one, i);
  for (size_t i = 0; i < chain_.size(); ++i) ASSERT_TRUE(one_by_one.Wait(i).status);
  EXPECT_TRUE(std::ranges::is_sorted(one_by_one.order()));

  Open(100);  // more than the inner tier takes
  EXPECT_EQ(tier_->max_reads_in_flight(), inner_->max_reads_in_flight());
  Open(5000);
  EXPECT_EQ(tier_->max_read_bytes_in_flight(), inner_->max_read_bytes_in_flight());
}

TEST_F(StagedTierTest, AReadThatWaitsForASlotIsCancelledWithoutTheInnerTier) {
  Open(1);
  inner_->Hold();
  Reads reads;
  for (size_t i = 0; i < 3; ++i) Start(reads, i);
  ASSERT_TRUE(Eventually([&] { return inner_->gets() == 1; }));
  tier_->Cancel(reads.id(1));
  EXPECT_EQ(CodeOf(reads.Wait(1)), ErrorCode::kCancelled);
  EXPECT_EQ(inner_->gets(), 1);
  EXPECT_EQ(inner_->cancels(), 0);
  inner_->Release();
  ASSERT_TRUE(reads.Wait(0).status);
  ASSERT_TRUE(reads.Wait(2).status);
  EXPECT_EQ(inner_->gets(), 2);
  EXPECT_TRUE(IsUntouched(reads.landing(1)));
}

TEST_F(StagedTierTest, ACancelledReadKeepsItsSlotUntilTheInnerTierLetsGo) {
  Open(1);
  inner_->Hold();
  Reads reads;
  Start(reads, 0);
  Start(reads, 1);
  ASSERT_TRUE(Eventually([&] { return inner_->gets() == 1; }));
  tier_->Cancel(reads.id(0));
  ASSERT_TRUE(Eventually([&] { return inner_->cancels() == 1; }));
  Linger();
  EXPECT_EQ(reads.answers(0), 0);
  EXPECT_EQ(inner_->gets(), 1);
  inner_->Release();  // which delivers both
  EXPECT_EQ(CodeOf(reads.Wait(0)), ErrorCode::kCancelled);
  EXPECT_TRUE(IsUntouched(reads.landing(0)));
  ASSERT_TRUE(reads.Wait(1).status);
  EXPECT_TRUE(HoldsChunk(chain_[1], reads.landing(1)));
  EXPECT_EQ(copier_.bytes(), layout_.page_bytes());
}

TEST_F(StagedTierTest, AReadThatIsBeingCopiedComesAlthoughCancelled) {
  Open(1);
  copier_.Set({.hold_to_page = true});
  Reads reads;
  Start(reads, 0);
  ASSERT_TRUE(Eventually([&] { return copier_.held() == 1; }));
  tier_->Cancel(reads.id(0));
  Linger();
  EXPECT_EQ(reads.answers(0), 0);
  EXPECT_EQ(inner_->cancels(), 0);
  copier_.Set({});
  ASSERT_TRUE(reads.Wait(0).status);
  EXPECT_TRUE(HoldsChunk(chain_[0], reads.landing(0)));
}

TEST_F(StagedTierTest, AReadThatFailsCopiesNothingAndGivesItsSlotBack) {
  Open(1);
  {
    Reads reads;
    reads.Start(*tier_, layout_, chain_[5], Root());  // another parent
    EXPECT_EQ(CodeOf(reads.Wait(0)), ErrorCode::kCorrupt);
    EXPECT_TRUE(IsUntouched(reads.landing(0)));
    reads.Start(*tier_, layout_, Chain(1, 7)[0], Root());
    EXPECT_EQ(CodeOf(reads.Wait(1)), ErrorCode::kNotFound);
    EXPECT_EQ(copier_.bytes(), 0u);
    Start(reads, 0);
    ASSERT_TRUE(reads.Wait(2).status);
  }
  const uint64_t copied = copier_.bytes();
  Open(1, 1, {.read_error = 0.4, .read_flip = 0.6});  // which scribble on what they are given
  Reads reads;
  for (size_t i = 0; i < chain_.size(); ++i) Start(reads, i);
  for (size_t i = 0; i < chain_.size(); ++i) {
    EXPECT_FALSE(reads.Wait(i).status);
    EXPECT_TRUE(IsUntouched(reads.landing(i)));
  }
  EXPECT_EQ(copier_.bytes(), copied);
}

TEST_F(StagedTierTest, OfSomeLayersJustTheirSlabsAreCopied) {
  Open(1);
  Reads reads;
  Start(reads, 0);  // leaves other bytes in the slot
  ASSERT_TRUE(reads.Wait(0).status);
  const uint64_t before = copier_.bytes();
  Start(reads, 3, LayerRange{.first = 1, .count = 1});
  const ReadResult result = reads.Wait(1);
  ASSERT_TRUE(result.status);
  EXPECT_EQ(result.bytes, layout_.slab_bytes());
  EXPECT_EQ(copier_.bytes() - before, layout_.slab_bytes());
  EXPECT_TRUE(HoldsLayer(chain_[3], reads.landing(1), 1));
  const auto landing = reads.landing(1).span();
  const auto untouched = PageBuffer(layout_);
  const size_t begin = layout_.slab_offset(1), end = layout_.slab_offset(2);
  EXPECT_TRUE(std::ranges::equal(landing.first(begin), untouched.span().first(begin)));
  EXPECT_TRUE(std::ranges::equal(landing.subspan(end), untouched.span().subspan(end)));
}

TEST_F(StagedTierTest, PutWaitsForItsCopyAndGivesItsSlotBackWhateverComesOfIt) {
  Open(1, 1);
  copier_.Set({.hold_from_page = true});
  const auto own = Chain(3, 5);
  auto put = std::async(std::launch::async,
                        [&] { return PutChunk(*tier_, layout_, own[0], Root()).has_value(); });
  ASSERT_TRUE(Eventually([&] { return copier_.held() == 1; }));
  Linger();
  EXPECT_FALSE(tier_->Residency(own)[0]);
  copier_.Set({});
  EXPECT_TRUE(put.get());
  EXPECT_TRUE(tier_->Residency(own)[0]);
  EXPECT_EQ(ReadBack(*tier_, layout_, own[0], Root()), std::nullopt);
  const uint64_t copied = copier_.bytes();
  EXPECT_TRUE(PutChunk(*tier_, layout_, own[0], Root()));
  EXPECT_EQ(copier_.bytes(), copied) << "it is there already";

  Open(1, 1, {.write_error = 1});
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(PutChunk(*tier_, layout_, own[i], ParentOf(own, i)).error().code, ErrorCode::kIo);
  }
}

TEST_F(StagedTierTest, APageIsReadOnceItsCopyIsMadeAndMayChangeThen) {
  auto gated = std::make_unique<GatedTier>(MemoryTierOptions{.layout = layout_});
  GatedTier& inner = *gated;
  const StagedTierOptions options{.read_slots = 1, .write_slots = 3, .layout = layout_};
  StagedTier tier(std::move(gated), copier_, Staging(options), options);
  EXPECT_EQ(tier.max_writes_in_flight(), 3);
  PageBuffer page(layout_);
  FillPage(chain_[0], page.span());
  std::atomic<int> page_read{0};
  copier_.Set({.hold_from_page = true});
  MutexLock closed(inner.gate);
  auto put = std::async(std::launch::async, [&] {
    return tier.Put({.key = chain_[0],
                     .parent = Root(),
                     .numeric_path = NumericPath::kF32Fma,
                     .page = page.span(),
                     .page_read = [&] { ++page_read; }});
  });
  ASSERT_TRUE(Eventually([&] { return copier_.held() == 1; }));
  Linger();
  EXPECT_EQ(page_read, 0);
  copier_.Set({});
  EXPECT_TRUE(Eventually([&] { return page_read == 1; })) << "while the inner tier hangs";
  std::ranges::fill(page.span(), std::byte{0x55});
  closed.Unlock();
  ASSERT_TRUE(put.get());
  EXPECT_EQ(page_read, 1);
  EXPECT_EQ(ReadBack(tier, layout_, chain_[0], Root()), std::nullopt);
}

// The tier below may tell as well when it has read what it was given, which is the slot.
TEST_F(StagedTierTest, APageIsReadOnceThoughItsSlotIs) {
  struct ReadingTier : WatchedTier {
    using WatchedTier::WatchedTier;
    Status Put(const ChunkWrite& chunk) override {
      if (chunk.page_read) chunk.page_read();
      return inner().Put(chunk);
    }
  };
  const StagedTierOptions options{.layout = layout_};
  auto memory = std::make_unique<MemoryTier>(MemoryTierOptions{.layout = layout_});
  StagedTier tier(std::make_unique<ReadingTier>(std::move(memory)), copier_, Staging(options),
                  options);
  PageBuffer page(layout_);
  FillPage(chain_[0], page.span());
  int page_read = 0;
  ASSERT_TRUE(tier.Put({.key = chain_[0],
                        .parent = Root(),
                        .numeric_path = NumericPath::kF32Fma,
                        .page = page.span(),
                        .page_read = [&] { ++page_read; }}));
  EXPECT_EQ(page_read, 1);
}

TEST_F(StagedTierTest, ReadsAndWritesDoNotStarveEachOther) {
  Open(2, 2);
  copier_.Set({.hold_from_page = true});
  const auto own = Chain(5, 5);
  std::vector<std::future<bool>> puts;
  for (size_t i = 0; i < 4; ++i) {
    puts.push_back(std::async(std::launch::async, [&, i] {
      return PutChunk(*tier_, layout_, own[i], ParentOf(own, i)).has_value();
    }));
  }
  ASSERT_TRUE(Eventually([&] { return copier_.held() == 2; }));
  Linger();
  EXPECT_EQ(copier_.held(), 2u) << "a slot of a write is its own until it ends";
  Reads reads;
  for (size_t i = 0; i < 4; ++i) Start(reads, i);
  for (size_t i = 0; i < 4; ++i) EXPECT_TRUE(reads.Wait(i).status);
  copier_.Set({.hold_to_page = true});
  for (auto& put : puts) EXPECT_TRUE(put.get());
  for (size_t i = 4; i < 8; ++i) Start(reads, i);
  ASSERT_TRUE(Eventually([&] { return copier_.held() == 2; }));
  EXPECT_TRUE(PutChunk(*tier_, layout_, own[4], own[3]));
  EXPECT_EQ(copier_.held(), 2u);
  copier_.Set({});
  for (size_t i = 4; i < 8; ++i) EXPECT_TRUE(reads.Wait(i).status);
  for (size_t i = 0; i < own.size(); ++i) {
    EXPECT_EQ(ReadBack(*tier_, layout_, own[i], ParentOf(own, i)), std::nullopt);
  }
}

TEST_F(StagedTierTest, TheDestructorWaitsForReadsAndCopies) {
  Open(2);
  copier_.Set({.hold_to_page = true});
  Reads reads;
  Start(reads, 0);
  ASSERT_TRUE(Eventually([&] { return copier_.held() == 1; }));
  inner_->Hold();
  for (size_t i = 1; i < 4; ++i) Start(reads, i);
  ASSERT_TRUE(Eventually([&] { return inner_->gets() == 2; }));
  WatchedTier& inner = *inner_;
  std::atomic<bool> destroyed{false};
  std::thread destroyer([&] {
    tier_.reset();
    destroyed = true;
  });
  EXPECT_EQ(CodeOf(reads.Wait(2)), ErrorCode::kCancelled);
  EXPECT_EQ(CodeOf(reads.Wait(3)), ErrorCode::kCancelled);
  EXPECT_TRUE(Eventually([&] { return inner.cancels() == 1; }));
  EXPECT_EQ(reads.answers(0) + reads.answers(1), 0);
  inner.Release();
  EXPECT_EQ(CodeOf(reads.Wait(1)), ErrorCode::kCancelled);
  Linger();
  EXPECT_FALSE(destroyed);
  copier_.Set({});
  destroyer.join();
  ASSERT_EQ(reads.answers(0), 1);
  ASSERT_TRUE(reads.Wait(0).status);
  EXPECT_TRUE(HoldsChunk(chain_[0], reads.landing(0)));
}

TEST_F(StagedTierTest, RandomTrafficIsAnsweredOnceAndRight) {
  copier_.Set({.delay_max = Seconds(3e-4)});
  for (int seed = 1; seed <= 4; ++seed) {
    Open(3, 2,
         {.seed = static_cast<uint64_t>(seed),
          .read_error = 0.1,
          .read_flip = 0.02,
          .read_missing = 0.1,
          .read_delay = 0.3});
    std::atomic<int> wrong{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        std::mt19937 random(10 * seed + t);
        const auto own = Chain(5, 20 + t);
        Reads reads;
        std::vector<std::pair<size_t, LayerRange>> read;  // chunk and layers
        for (size_t n = 0; n < 60; ++n) {
          LayerRange layers{.first = static_cast<int>(random() % layout_.layers)};
          layers.count = 1 + static_cast<int>(random() % (layout_.layers - layers.first));
          const bool whole = random() % 2 == 0;
          if (whole) layers = {0, layout_.layers};
          read.emplace_back(random() % chain_.size(), layers);
          Start(reads, read.back().first, whole ? std::nullopt : std::optional(layers));
          if (random() % 4 == 0) tier_->Cancel(reads.id(random() % (n + 1)));
          if (n % 12 == 0) {
            wrong += !PutChunk(*tier_, layout_, own[n / 12], ParentOf(own, n / 12)).has_value();
          }
          if (random() % 8 == 0) reads.Wait(n);
        }
        for (size_t n = 0; n < read.size(); ++n) {
          const bool ok = reads.Wait(n).status.has_value();
          const auto [i, layers] = read[n];
          for (int layer = layers.first; ok && layer < layers.first + layers.count; ++layer) {
            wrong += !HoldsLayer(chain_[i], reads.landing(n), layer);
          }
          wrong += !ok && !IsUntouched(reads.landing(n));
          wrong += reads.answers(n) != 1;
        }
      });
    }
    for (auto& thread : threads) thread.join();
    EXPECT_EQ(wrong, 0);
    EXPECT_LE(inner_->in_flight_max(), 3);
  }
}

}  // namespace
}  // namespace kvcake
