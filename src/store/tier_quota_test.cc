// One suite of what a quota for each owner promises, run against every tier that keeps one, and
// through decorators.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <thread>

#include "kv/page_copier_testing.h"
#include "store/disk_tier.h"
#include "store/faulty_tier_testing.h"
#include "store/late_tier.h"
#include "store/memory_tier.h"
#include "store/staged_tier.h"
#include "store/throttled_tier.h"
#include "store/tier_testing.h"

namespace kvcake {
namespace {

using namespace testing_util;

constexpr uint64_t kQuotaCapacity = 8, kQuotaChunks = 3;

struct QuotaWorld {
  TempDir dir;
  KvLayout layout = SmallLayout();
  std::unique_ptr<std::byte, void (*)(void*)> staging{nullptr, free};
  FakeCopier copier;
};

std::unique_ptr<Tier> QuotaMemory(QuotaWorld& world) {
  const uint64_t page = world.layout.page_bytes();
  return std::make_unique<MemoryTier>(MemoryTierOptions{.layout = world.layout,
                                                        .capacity_bytes = kQuotaCapacity * page,
                                                        .owner_quota_bytes = kQuotaChunks * page});
}

std::unique_ptr<Tier> QuotaDisk(QuotaWorld& world) {
  DiskTierOptions options;
  options.dir = world.dir.path();
  options.layout = world.layout;
  options.root = Root();
  options.capacity_bytes = kQuotaCapacity * world.layout.page_bytes();
  options.owner_quota_bytes = kQuotaChunks * world.layout.page_bytes();
  options.upkeep_interval = Seconds(3600);
  return DiskTier::Open(options).value();
}

std::unique_ptr<Tier> QuotaStaged(QuotaWorld& world, std::unique_ptr<Tier> inner) {
  const StagedTierOptions options{.read_slots = 3, .layout = world.layout};
  const uint64_t bytes = options.staging_bytes();
  world.staging.reset(static_cast<std::byte*>(aligned_alloc(4096, bytes)));
  return std::make_unique<StagedTier>(std::move(inner), world.copier,
                                      std::span(world.staging.get(), bytes), options);
}

struct QuotaCase {
  const char* name;
  std::function<std::unique_ptr<Tier>(QuotaWorld&)> make;
};

const QuotaCase kQuotaCases[] = {
    {"memory", QuotaMemory},
    {"disk", QuotaDisk},
    {"staged_memory", [](QuotaWorld& world) { return QuotaStaged(world, QuotaMemory(world)); }},
    {"staged_disk", [](QuotaWorld& world) { return QuotaStaged(world, QuotaDisk(world)); }},
    {"throttled_late_disk",
     [](QuotaWorld& world) {
       return std::make_unique<ThrottledTier>(
           std::make_unique<LateTier>(QuotaDisk(world), LateTierOptions{.delay = Seconds(1e-3)}),
           ThrottledTierOptions{.rate_bytes_per_s = 200e6});
     }},
    {"faulty_memory",
     [](QuotaWorld& world) {
       return std::make_unique<FaultyTier>(QuotaMemory(world), FaultyTierOptions{});
     }},
};

class TierQuotaTest : public testing::TestWithParam<QuotaCase> {
 protected:
  // Chunks [begin, end) of the chain.
  void Put(const std::vector<ChunkKey>& chain, size_t begin, size_t end, OwnerId owner) {
    for (size_t i = begin; i < end; ++i) {
      ASSERT_TRUE(PutChunk(*tier_, world_.layout, chain[i], ParentOf(chain, i), owner)) << i;
    }
  }
  // The places in the chain of what is there.
  std::vector<size_t> Held(const std::vector<ChunkKey>& chain) {
    const auto resident = tier_->Residency(chain);
    std::vector<size_t> held;
    for (size_t i = 0; i < chain.size(); ++i) {
      if (resident[i]) held.push_back(i);
    }
    return held;
  }
  // In chunks, by owner.
  std::vector<OwnedBytes> Owners() const {
    auto owners = tier_->Owners();
    std::ranges::sort(owners);
    for (OwnedBytes& owned : owners) owned.bytes /= world_.layout.page_bytes();
    return owners;
  }

  using Places = std::vector<size_t>;
  QuotaWorld world_;
  std::unique_ptr<Tier> tier_ = GetParam().make(world_);
  const std::vector<ChunkKey> anns_ = Chain(20, 1), bobs_ = Chain(20, 2), nobodys_ = Chain(20, 3);
};

TEST_P(TierQuotaTest, WhatIsOverAQuotaGoesFromItsOwnColdestOn) {
  EXPECT_TRUE(Owners().empty());
  Put(nobodys_, 0, 1, kNobody);
  Put(bobs_, 0, 2, kBob);
  Put(anns_, 0, 3, kAnn);
  EXPECT_EQ(tier_->Stats().evicted, 0u);
  // A read is a use.
  ASSERT_EQ(ReadBack(*tier_, world_.layout, anns_[0], Root()), std::nullopt);
  Put(anns_, 3, 5, kAnn);
  EXPECT_EQ(Held(anns_), (Places{0, 3, 4}));
  EXPECT_EQ(Held(bobs_), (Places{0, 1}));
  EXPECT_EQ(Held(nobodys_), (Places{0}));
  EXPECT_EQ(Owners(), (std::vector<OwnedBytes>{{kAnn, 3}, {kBob, 2}}));
  EXPECT_EQ(tier_->Stats().evicted, 2u);
}

TEST_P(TierQuotaTest, AFloodIntoAFullTierTakesNothingFromOthers) {
  Put(nobodys_, 0, 2, kNobody);
  Put(bobs_, 0, 3, kBob);
  Put(anns_, 0, 20, kAnn);
  EXPECT_EQ(Held(anns_), (Places{17, 18, 19}));
  EXPECT_EQ(Held(bobs_), (Places{0, 1, 2}));
  EXPECT_EQ(Held(nobodys_), (Places{0, 1}));
  EXPECT_EQ(ReadBack(*tier_, world_.layout, bobs_[0], Root()), std::nullopt);
}

// Several threads write for the same owner, as write-behind does: what is being written counts.
TEST_P(TierQuotaTest, AFloodByManyThreadsTakesNothingFromOthers) {
  Put(bobs_, 0, 3, kBob);
  Put(nobodys_, 0, 2, kNobody);
  const auto flood = Chain(200, 4);
  std::atomic<size_t> next{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (size_t i = next++; i < flood.size(); i = next++) {
        // Whether there was room is not what is asked here.
        (void)PutChunk(*tier_, world_.layout, flood[i], ParentOf(flood, i), kAnn);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(Held(bobs_), (Places{0, 1, 2}));
  EXPECT_EQ(Held(nobodys_), (Places{0, 1}));
  EXPECT_EQ(Owners(), (std::vector<OwnedBytes>{{kAnn, 3}, {kBob, 3}}));
}

TEST_P(TierQuotaTest, NobodysChunksHaveNoQuota) {
  Put(nobodys_, 0, 10, kNobody);
  EXPECT_EQ(Held(nobodys_).size(), kQuotaCapacity);
  EXPECT_TRUE(Owners().empty());
}

TEST_P(TierQuotaTest, WhatIsPinnedStaysAndItsOwnerIsFirstWhenTheTierIsFull) {
  Put(nobodys_, 0, 2, kNobody);  // the coldest of all
  Put(bobs_, 0, 2, kBob);
  Put(anns_, 0, 3, kAnn);
  tier_->Pin(anns_);
  Put(anns_, 3, 4, kAnn);
  EXPECT_EQ(Held(anns_), (Places{0, 1, 2, 3})) << "all are in use";
  EXPECT_EQ(Owners(), (std::vector<OwnedBytes>{{kAnn, 4}, {kBob, 2}}));
  tier_->Unpin(anns_);
  Put(bobs_, 2, 3, kBob);
  EXPECT_EQ(Held(anns_), (Places{1, 2, 3}));
  EXPECT_EQ(Held(bobs_), (Places{0, 1, 2}));
  EXPECT_EQ(Held(nobodys_), (Places{0, 1}));
}

TEST_P(TierQuotaTest, WhoHasItsQuotaInUseDisplacesNobodyInAFullTier) {
  Put(nobodys_, 0, 3, kNobody);
  Put(bobs_, 0, 2, kBob);
  Put(anns_, 0, 3, kAnn);
  tier_->Pin(anns_);
  const Status refused = PutChunk(*tier_, world_.layout, anns_[3], anns_[2], kAnn);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kResourceExhausted);
  EXPECT_EQ(tier_->Stats().evicted, 0u);
  EXPECT_EQ(Owners(), (std::vector<OwnedBytes>{{kAnn, 3}, {kBob, 2}}));
  Put(bobs_, 2, 3, kBob);
  EXPECT_EQ(Held(nobodys_), (Places{1, 2}));
  tier_->Unpin(anns_);
  Put(anns_, 3, 4, kAnn);
  EXPECT_EQ(Held(anns_), (Places{1, 2, 3}));
}

TEST_P(TierQuotaTest, AnOwnerWithoutChunksIsForgotten) {
  Put(anns_, 0, 2, kAnn);
  Put(bobs_, 0, 1, kBob);
  for (size_t i = 0; i < 2; ++i) ASSERT_TRUE(tier_->Evict(anns_[i]));
  EXPECT_EQ(Owners(), (std::vector<OwnedBytes>{{kBob, 1}}));
}

INSTANTIATE_TEST_SUITE_P(Tiers, TierQuotaTest, testing::ValuesIn(kQuotaCases),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace kvcake
