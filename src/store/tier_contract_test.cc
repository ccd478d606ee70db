// One suite of promises, run against every tier and decorator.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <thread>

#include "base/mutex.h"
#include "store/tier_cases_testing.h"

namespace kvcake {
namespace {

using namespace testing_util;

class TierContractTest : public testing::TestWithParam<TierCase> {
 protected:
  World world_;
  std::unique_ptr<Tier> tier_ = GetParam().make(world_);
  const KvLayout& layout_ = world_.layout;
  std::vector<ChunkKey> chain_ = Chain(12);

  void PutChain() {
    for (size_t i = 0; i < chain_.size(); ++i) {
      ASSERT_TRUE(PutChunk(*tier_, layout_, chain_[i], ParentOf(chain_, i)));
    }
  }
};

TEST_P(TierContractTest, WhatIsPutIsReadBackBitForBit) {
  PutChain();
  Reads reads;
  for (size_t i = 0; i < chain_.size(); ++i) {
    reads.Start(*tier_, layout_, chain_[i], ParentOf(chain_, i));
  }
  for (size_t i = 0; i < chain_.size(); ++i) {
    const ReadResult result = reads.Wait(i);
    ASSERT_TRUE(result.status) << result.status.error().message;
    EXPECT_EQ(result.bytes, layout_.page_bytes());
    EXPECT_EQ(result.numeric_path, NumericPath::kF32Fma);
    EXPECT_TRUE(HoldsChunk(chain_[i], reads.landing(i)));
  }
  const TierStats stats = tier_->Stats();
  EXPECT_EQ(stats.chunks, chain_.size());
  EXPECT_EQ(stats.bytes, chain_.size() * world_.chunk_bytes);
  EXPECT_EQ(stats.reads, chain_.size());
  EXPECT_EQ(stats.read_bytes, chain_.size() * world_.chunk_bytes);
  EXPECT_EQ(stats.writes, chain_.size());
  EXPECT_EQ(stats.write_bytes, chain_.size() * world_.chunk_bytes);
  EXPECT_EQ(stats.reads_failed + stats.writes_failed + stats.quarantined + stats.evicted, 0u);
}

TEST_P(TierContractTest, ResidencyTellsWhatIsKeptWithHoles) {
  for (size_t i : {0u, 3u, 4u, 11u}) {
    ASSERT_TRUE(PutChunk(*tier_, layout_, chain_[i], ParentOf(chain_, i)));
  }
  const auto resident = tier_->Residency(chain_);
  ASSERT_EQ(resident.size(), chain_.size());
  for (size_t i = 0; i < chain_.size(); ++i) {
    EXPECT_EQ(resident[i], i == 0 || i == 3 || i == 4 || i == 11) << i;
  }
  EXPECT_TRUE(tier_->Residency({}).empty());
}

TEST_P(TierContractTest, AMissingChunkIsAMissAndNoFailure) {
  EXPECT_EQ(ReadBack(*tier_, layout_, chain_[0], Root()), ErrorCode::kNotFound);
  EXPECT_EQ(tier_->Stats().reads_failed, 0u);
  EXPECT_EQ(tier_->Stats().reads, 0u);
}

TEST_P(TierContractTest, ResidencySeesAPutAfterAMiss) {
  EXPECT_FALSE(tier_->Residency(chain_)[0]);
  ASSERT_TRUE(PutChunk(*tier_, layout_, chain_[0], Root()));
  EXPECT_TRUE(tier_->Residency(chain_)[0]);
}

TEST_P(TierContractTest, AnotherParentIsCorrupt) {
  ASSERT_TRUE(PutChunk(*tier_, layout_, chain_[1], chain_[0]));
  EXPECT_EQ(ReadBack(*tier_, layout_, chain_[1], Root()), ErrorCode::kCorrupt);
  EXPECT_EQ(tier_->Stats().reads_failed, 1u);
  EXPECT_EQ(tier_->Stats().quarantined, 1u);
}

TEST_P(TierContractTest, PuttingTwiceKeepsOne) {
  ASSERT_TRUE(PutChunk(*tier_, layout_, chain_[0], Root()));
  ASSERT_TRUE(PutChunk(*tier_, layout_, chain_[0], Root()));
  EXPECT_EQ(tier_->Stats().chunks, 1u);
  EXPECT_EQ(ReadBack(*tier_, layout_, chain_[0], Root()), std::nullopt);
}

TEST_P(TierContractTest, EvictedIsGoneAndCanBePutAgain) {
  PutChain();
  ASSERT_TRUE(tier_->Evict(chain_[5]));
  ASSERT_TRUE(tier_->Evict(chain_[5]));  // of nothing is ok
  EXPECT_FALSE(tier_->Residency(chain_)[5]);
  EXPECT_EQ(ReadBack(*tier_, layout_, chain_[5], chain_[4]), ErrorCode::kNotFound);
  EXPECT_EQ(tier_->Stats().evicted, 1u);
  ASSERT_TRUE(PutChunk(*tier_, layout_, chain_[5], chain_[4]));
  EXPECT_EQ(ReadBack(*tier_, layout_, chain_[5], chain_[4]), std::nullopt);
}

TEST_P(TierContractTest, CapacityIsKeptByEvictingTheColdest) {
  if (!GetParam().is_bounded) return;
  const auto chain = Chain(kCapacityChunks + 10, 1);
  for (int i = 0; i < kCapacityChunks; ++i) {
    ASSERT_TRUE(PutChunk(*tier_, layout_, chain[i], ParentOf(chain, i)));
  }
  // Reading is a use: chunk 0 is no longer the coldest.
  ASSERT_EQ(ReadBack(*tier_, layout_, chain[0], Root()), std::nullopt);
  for (size_t i = kCapacityChunks; i < chain.size(); ++i) {
    ASSERT_TRUE(PutChunk(*tier_, layout_, chain[i], ParentOf(chain, i)));
    ASSERT_LE(tier_->Stats().bytes, kCapacityChunks * world_.chunk_bytes);
  }
  EXPECT_EQ(tier_->Stats().evicted, 10u);
  const auto resident = tier_->Residency(chain);
  EXPECT_TRUE(resident[0]);
  for (int i = 1; i <= 10; ++i) EXPECT_FALSE(resident[i]) << i;
  for (size_t i = 11; i < chain.size(); ++i) EXPECT_TRUE(resident[i]) << i;
}

TEST_P(TierContractTest, SomeLayersAreReadIntoTheirPlaceAndNothingElseIsTouched) {
  PutChain();
  std::mt19937 random(1);
  for (int round = 0; round < 30; ++round) {
    const size_t i = random() % chain_.size();
    LayerRange layers{.first = static_cast<int>(random() % layout_.layers)};
    layers.count = 1 + static_cast<int>(random() % (layout_.layers - layers.first));
    Reads reads;
    reads.Start(*tier_, layout_, chain_[i], ParentOf(chain_, i), layers);
    const ReadResult result = reads.Wait(0);
    ASSERT_TRUE(result.status) << result.status.error().message;
    EXPECT_EQ(result.bytes, layers.count * layout_.slab_bytes());
    EXPECT_EQ(result.numeric_path, NumericPath::kF32Fma);
    const PageBuffer untouched(layout_);
    for (int layer = 0; layer < layout_.layers; ++layer) {
      const bool read = layer >= layers.first && layer < layers.first + layers.count;
      EXPECT_EQ(HoldsLayer(chain_[i], reads.landing(0), layer), read) << layer;
      if (!read) {
        EXPECT_TRUE(std::ranges::equal(reads.landing(0).payload(layer), untouched.payload(layer)));
      }
    }
  }
}

TEST_P(TierContractTest, SomeLayersOfAnotherParentAreCorruptToo) {
  ASSERT_TRUE(PutChunk(*tier_, layout_, chain_[1], chain_[0]));
  Reads reads;
  reads.Start(*tier_, layout_, chain_[1], Root(), LayerRange{.first = 1, .count = 1});
  const ReadResult result = reads.Wait(0);
  ASSERT_FALSE(result.status);
  EXPECT_EQ(result.status.error().code, ErrorCode::kCorrupt);
}

TEST_P(TierContractTest, WhoLooksHearsOfEveryKeyInOrder) {
  for (size_t i : {1u, 2u, 7u}) {
    ASSERT_TRUE(PutChunk(*tier_, layout_, chain_[i], ParentOf(chain_, i)));
  }
  auto keys = chain_;
  for (const ChunkKey& key : Chain(300, 4)) keys.push_back(key);
  const std::vector<bool> held = Held(*tier_, keys);
  ASSERT_EQ(held.size(), keys.size());
  for (size_t i = 0; i < keys.size(); ++i) EXPECT_EQ(held[i], i == 1 || i == 2 || i == 7) << i;
}

TEST_P(TierContractTest, APinnedChunkStaysWhileOthersMakeRoom) {
  if (!GetParam().is_bounded) return;
  const auto chain = Chain(kCapacityChunks, 1), more = Chain(kCapacityChunks, 2);
  for (size_t i = 0; i < chain.size(); ++i) {
    ASSERT_TRUE(PutChunk(*tier_, layout_, chain[i], ParentOf(chain, i)));
  }
  const std::span<const ChunkKey> pinned = std::span(chain).first(5);
  tier_->Pin(pinned);
  tier_->Pin(pinned);
  tier_->Unpin(pinned);  // one pin is left
  for (size_t i = 0; i < 35; ++i) {
    ASSERT_TRUE(PutChunk(*tier_, layout_, more[i], ParentOf(more, i)));
  }
  auto resident = tier_->Residency(chain);
  for (size_t i = 0; i < chain.size(); ++i) EXPECT_EQ(resident[i], i < 5) << i;
  // With everything pinned there is no room; nothing else is lost for it.
  tier_->Pin(more);
  EXPECT_EQ(PutChunk(*tier_, layout_, more[39], more[38]).error().code,
            ErrorCode::kResourceExhausted);
  EXPECT_EQ(tier_->Stats().chunks, static_cast<uint64_t>(kCapacityChunks));
  tier_->Unpin(pinned);  // none is left
  EXPECT_TRUE(PutChunk(*tier_, layout_, more[39], more[38]));
}

// The front of a prompt goes first: it is what compute makes again at the least cost.
TEST_P(TierContractTest, TheEndOfAPinIsAUseOfAllFrontToBack) {
  if (!GetParam().is_bounded) return;
  const auto chain = Chain(kCapacityChunks, 1), more = Chain(kCapacityChunks, 2);
  for (size_t i = 0; i < chain.size(); ++i) {
    ASSERT_TRUE(PutChunk(*tier_, layout_, chain[i], ParentOf(chain, i)));
  }
  const std::span<const ChunkKey> prompt = std::span(chain).first(10);  // the coldest
  tier_->Pin(prompt);
  tier_->Unpin(prompt);
  for (size_t i = 0; i < 35; ++i) {
    ASSERT_TRUE(PutChunk(*tier_, layout_, more[i], ParentOf(more, i)));
  }
  const auto resident = tier_->Residency(prompt);
  for (size_t i = 0; i < 10; ++i) EXPECT_EQ(resident[i], i >= 5) << i;
}

TEST_P(TierContractTest, ACancelledReadIsAnsweredOnce) {
  PutChain();
  for (int round = 0; round < 20; ++round) {
    Reads reads;
    for (size_t i = 0; i < chain_.size(); ++i) {
      reads.Start(*tier_, layout_, chain_[i], ParentOf(chain_, i));
    }
    for (size_t i = 0; i < chain_.size(); i += 2) tier_->Cancel(reads.id(i));
    for (size_t i = 0; i < chain_.size(); ++i) {
      const ReadResult result = reads.Wait(i);
      if (result.status) {
        EXPECT_TRUE(HoldsChunk(chain_[i], reads.landing(i)));
      } else {
        EXPECT_EQ(result.status.error().code, ErrorCode::kCancelled);
        EXPECT_EQ(i % 2, 0u) << "nobody cancelled this one";
      }
      tier_->Cancel(reads.id(i));  // of a read that has ended does nothing
    }
    for (size_t i = 0; i < chain_.size(); ++i) EXPECT_EQ(reads.answers(i), 1);
  }
  tier_->Cancel(123456789);  // nor of one that never was
  EXPECT_EQ(tier_->Stats().reads_failed, 0u);
}

// Tiers whose reads do not come by themselves while the test looks, so that Cancel has to act.
const TierCase kStalledCases[] = {
    {"memory", [](World& world) { return MakeSlowMemory(world, nullptr); }},
    {"memory_copied", [](World& world) { return MakeSlowMemory(world, &world.copier); }},
    {"disk",
     [](World& world) {
       auto tier = MakeDisk(world, world.blocking, 4 << 20, /*max_reads_in_flight=*/1);
       world.blocking.Set({.read_stall = 1});
       return tier;
     }},
    {"disk_queue",  // stalled below the tier: in the helpers' queue
     [](World& world) {
       auto tier = MakeDisk(world, world.blocking, 4 << 20);
       world.blocking.Set({.read_stall = 1});
       return tier;
     }},
    {"lossless",  // waiting for a slot
     [](World& world) {
       auto tier = MakeEncoded(world, Codec::kLossless, world.blocking, 4 << 20,
                               /*max_reads_in_flight=*/1);
       world.blocking.Set({.read_stall = 1});
       return tier;
     }},
    {"lossless_queue",  // stalled below the tier
     [](World& world) {
       auto tier = MakeEncoded(world, Codec::kLossless, world.blocking);
       world.blocking.Set({.read_stall = 1});
       return tier;
     }},
    {"throttled",
     [](World& world) {
       return std::make_unique<ThrottledTier>(MakeMemory(world),
                                              ThrottledTierOptions{.rate_bytes_per_s = 1e-3});
     }},
    {"faulty",
     [](World& world) {
       return std::make_unique<FaultyTier>(MakeMemory(world), FaultyTierOptions{.read_stall = 1});
     }},
    {"late",  // stalled below it
     [](World& world) {
       auto faulty =
           std::make_unique<FaultyTier>(MakeMemory(world), FaultyTierOptions{.read_stall = 1});
       return std::make_unique<LateTier>(std::move(faulty), LateTierOptions{.share = 0.5});
     }},
    {"staged",  // likewise
     [](World& world) {
       auto faulty =
           std::make_unique<FaultyTier>(MakeMemory(world), FaultyTierOptions{.read_stall = 1});
       return MakeStaged(world, std::move(faulty), /*read_slots=*/16);
     }},
    {"staged_queue",  // waiting for a slot
     [](World& world) {
       auto faulty =
           std::make_unique<FaultyTier>(MakeMemory(world), FaultyTierOptions{.read_stall = 1});
       return MakeStaged(world, std::move(faulty));
     }},
};

class StalledTierTest : public TierContractTest {};

TEST_P(StalledTierTest, ACancelledReadEndsCancelled) {
  PutChain();
  Reads reads;
  for (size_t i = 0; i < chain_.size(); ++i) {
    reads.Start(*tier_, layout_, chain_[i], ParentOf(chain_, i));
  }
  const size_t last = chain_.size() - 1;
  for (int i = 0; i < 2; ++i) tier_->Cancel(reads.id(last));
  const ReadResult result = reads.Wait(last);
  ASSERT_FALSE(result.status) << "Cancel did nothing";
  EXPECT_EQ(result.status.error().code, ErrorCode::kCancelled);
  for (size_t i = 0; i < last; ++i) tier_->Cancel(reads.id(i));
  world_.blocking.Set({});
  world_.blocking.ReleaseStalled();
  tier_.reset();
}

INSTANTIATE_TEST_SUITE_P(Tiers, StalledTierTest, testing::ValuesIn(kStalledCases),
                         [](const auto& info) { return info.param.name; });

TEST_P(TierContractTest, SeveralThreadsReadWriteAndCancel) {
  PutChain();
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(t);
      const auto own = Chain(3, 10 + t);
      Reads reads;
      std::vector<size_t> chunk_of;
      for (int n = 0; n < 40; ++n) {
        const size_t i = random() % chain_.size();
        chunk_of.push_back(i);
        const size_t read = reads.Start(*tier_, layout_, chain_[i], ParentOf(chain_, i));
        if (random() % 4 == 0) tier_->Cancel(reads.id(read));
        if (random() % 8 == 0) (void)tier_->Residency(chain_);
        if (n % 16 == 0 && !PutChunk(*tier_, layout_, own[n / 16], ParentOf(own, n / 16))) ++wrong;
        if (n % 8 == 7) reads.Wait(read);
      }
      for (size_t read = 0; read < chunk_of.size(); ++read) {
        const ReadResult result = reads.Wait(read);
        if (result.status) {
          wrong += !HoldsChunk(chain_[chunk_of[read]], reads.landing(read));
        } else {
          wrong += result.status.error().code != ErrorCode::kCancelled;
        }
        wrong += reads.answers(read) != 1;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(tier_->Stats().chunks, chain_.size() + 4 * 3);
}

TEST_P(TierContractTest, TheDestructorWaitsForEveryAnswer) {
  PutChain();
  Reads reads;
  for (size_t i = 0; i < chain_.size(); ++i) {
    reads.Start(*tier_, layout_, chain_[i], ParentOf(chain_, i));
  }
  tier_.reset();
  for (size_t i = 0; i < chain_.size(); ++i) EXPECT_EQ(reads.answers(i), 1) << i;
}

TEST_P(TierContractTest, AnAnswerMayStartTheNextRead) {
  PutChain();
  struct {
    Mutex mutex;
    CondVar changed;
    size_t ok GUARDED_BY(mutex) = 0;
    size_t answered GUARDED_BY(mutex) = 0;
  } answers;
  PageBuffer landing(layout_);
  std::function<void(size_t)> start = [&](size_t i) {
    tier_->Get({chain_[i], ParentOf(chain_, i), landing.span(), [&, i](ReadResult result) {
                  const bool right = result.status && HoldsChunk(chain_[i], landing);
                  if (i + 1 < chain_.size()) start(i + 1);
                  MutexLock lock(answers.mutex);
                  answers.ok += right;
                  ++answers.answered;
                  answers.changed.NotifyAll();
                }});
  };
  start(0);
  MutexLock lock(answers.mutex);
  while (answers.answered < chain_.size()) answers.changed.Wait(answers.mutex);
  EXPECT_EQ(answers.ok, chain_.size());
}

INSTANTIATE_TEST_SUITE_P(Tiers, TierContractTest, testing::ValuesIn(kCases),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace kvcake
