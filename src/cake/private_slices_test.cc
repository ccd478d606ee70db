// Restorations whose slices are computed into memory that is not the pool's.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "cake/fake_engine_testing.h"
#include "cake/held_tier_testing.h"
#include "cake/restorer_testing.h"
#include "cake/threaded_tier_testing.h"
#include "store/memory_tier.h"

namespace kvcake {
namespace {

using namespace testing_util;

RestoreRequest PrivateRequest(int document, int chunks, Policy policy = Policy::kCake) {
  RestoreRequest request = Request(document, chunks, policy);
  request.private_slices = true;
  return request;
}

class PrivateSlicesTest : public testing::Test {
 protected:
  std::unique_ptr<PagePool> pool_ =
      std::move(PagePool::Create(kLayout, 64 * kLayout.page_bytes()).value());
  ComputeCost cost_;
  std::unique_ptr<Restorer> restorer_ = NewRestorer(*pool_, {}, cost_, Clock::Real());
};

TEST_F(PrivateSlicesTest, NobodyElseGetsWhatOneComputes) {
  const auto first = restorer_->Open(PrivateRequest(1, 8));
  const auto second = restorer_->Open(PrivateRequest(1, 8));
  const ComputeTurn turn = first->ClaimFront(8);
  ASSERT_EQ(turn.kind, ComputeTurn::Kind::kSlice);
  EXPECT_EQ(turn.claim.count, 8);
  EXPECT_EQ(pool_->Stats().referenced, 0u) << "slices draw no pages";
  EXPECT_EQ(second->ClaimFront(3).claim.count, 3) << "and keep nobody else from computing";
  CheckInvariants(*restorer_);
  first->Computed(turn.claim);
  EXPECT_TRUE(first->done());
  EXPECT_FALSE(first->PageOf(0));
  EXPECT_EQ(pool_->Stats().cached, 0u) << "nothing may be found under its key";
  EXPECT_EQ(second->Progress().front, 0);
  EXPECT_EQ(first->Report().turns, 1);
}

TEST_F(PrivateSlicesTest, WhatIsNotComputedOfASliceIsGivenBack) {
  const auto restoration = restorer_->Open(PrivateRequest(1, 8));
  Claim claim = restoration->ClaimFront(6).claim;
  EXPECT_EQ(restoration->ClaimFront(1).kind, ComputeTurn::Kind::kWait) << "one at a time";
  claim.count = 2;
  restoration->Computed(claim);
  EXPECT_EQ(restoration->Progress().front, 2);
  EXPECT_EQ(restoration->Progress().computed, 2 * 128);
  claim = restoration->ClaimFront(6).claim;
  EXPECT_EQ(claim.first, 2);
  claim.count = 0;
  restoration->Computed(claim);
  EXPECT_EQ(restoration->Progress().front, 2);
  CheckInvariants(*restorer_);
}

// Loads of others go on beside a slice, and what they bring is found when it is given back.
TEST_F(PrivateSlicesTest, WhatOthersLoadBesideASliceIsThereAfterIt) {
  MemoryTier tier({.layout = kLayout});
  std::vector<std::byte> page(kLayout.page_bytes());
  const RestoreRequest request = PrivateRequest(1, 6, Policy::kLoad);
  for (int i = 0; i < 6; ++i) {
    std::memcpy(page.data() + kPageHeaderBytes, &request.keys[i], sizeof(ChunkKey));
    const ChunkKey parent = i == 0 ? request.root : request.keys[i - 1];
    ASSERT_TRUE(tier.Put({.key = request.keys[i], .parent = parent, .page = page}));
  }
  const auto restorer = NewRestorer(*pool_, {&tier}, cost_, Clock::Real());
  const auto computes = restorer->Open(PrivateRequest(1, 6, Policy::kCompute));
  Claim claim = computes->NextTurn({.chunks = 6}).claim;
  ASSERT_EQ(claim.count, 4) << "a slice at most";
  EXPECT_FALSE(computes->Report().reasons.empty());
  const auto loads = restorer->Open(request);
  while (!loads->done()) restorer->WaitForEvent(Clock::Real().Now() + Seconds(1));
  CheckInvariants(*restorer);
  claim.count = 1;
  computes->Computed(claim);
  EXPECT_TRUE(computes->done());
  EXPECT_FALSE(computes->PageOf(0));
  const PageHandle found = computes->PageOf(1);
  ASSERT_TRUE(found);
  EXPECT_EQ(
      std::memcmp(pool_->Data(found.id()) + kPageHeaderBytes, &request.keys[1], sizeof(ChunkKey)),
      0);
}

// By the one who gives them back: who loads them may sleep for long.
TEST_F(PrivateSlicesTest, WhatIsNotComputedOfASliceIsLoadedAtOnce) {
  HeldTier tier;
  tier.reads_max = 2;
  const auto restorer = NewRestorer(*pool_, {&tier}, cost_, Clock::Real());
  const auto restoration = restorer->Open(PrivateRequest(1, 2, Policy::kLoad));
  ASSERT_EQ(tier.reads.size(), 2u);
  Claim claim = restoration->ClaimFront(2).claim;
  for (const ReadRequest& read : std::exchange(tier.reads, {})) {
    read.done({.status = Fail(ErrorCode::kCancelled, "cancelled")});
  }
  ASSERT_TRUE(tier.reads.empty()) << "both are being computed";
  claim.count = 0;
  restoration->Computed(claim);
  EXPECT_EQ(tier.reads.size(), 2u);
  tier.DeliverAll();
  EXPECT_TRUE(restoration->done());
}

TEST_F(PrivateSlicesTest, ASliceThatIsClaimedIsATurnToReadIntoPagesThatWereTaken) {
  HeldTier tier;
  const auto pool = std::move(PagePool::Create(kLayout, kLayout.page_bytes()).value());
  const auto restorer = NewRestorer(*pool, {&tier}, cost_, Clock::Real());
  PageHandle taken = std::move(*pool->Draw());
  const auto restoration = restorer->Open(PrivateRequest(1, 4, Policy::kLoad));
  ASSERT_TRUE(tier.reads.empty());
  taken.Reset();
  EXPECT_EQ(restoration->ClaimFront(1).kind, ComputeTurn::Kind::kSlice);
  EXPECT_EQ(tier.reads.size(), 1u);
  restoration->Abandon();
  tier.DeliverAll();
}

// One of several engines that keep their slices to themselves.
class PrivateEngine {
 public:
  PrivateEngine(PagePool& pool, uint32_t seed) : pool_(pool), rng_(seed) {}

  // False when the restoration is done, or given up.
  bool Step(const RestoreRequest& request, Restoration& restoration) {
    const int chunks = 1 + static_cast<int>(rng_() % 4);
    ComputeTurn turn =
        rng_() % 4 == 0 ? restoration.ClaimFront(chunks) : restoration.NextTurn({.chunks = chunks});
    if (turn.kind == ComputeTurn::Kind::kDone) {
      ExpectPages(request, restoration);
      return false;
    }
    wake = std::min(wake, turn.wait_until);
    if (turn.kind != ComputeTurn::Kind::kSlice) return true;
    wake = TimePoint{};
    if (rng_() % 50 == 0) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(rng_() % 200));
    if (rng_() % 3 == 0) turn.claim.count = static_cast<int>(rng_() % (turn.claim.count + 1));
    restoration.Computed(turn.claim);
    return true;
  }

  TimePoint wake{};

 private:
  void ExpectPages(const RestoreRequest& request, const Restoration& restoration) {
    for (size_t i = 0; i < request.keys.size(); ++i) {
      const PageHandle page = restoration.PageOf(static_cast<int>(i));
      if (!page) continue;
      EXPECT_EQ(std::memcmp(pool_.Data(page.id()), &request.keys[i], sizeof(ChunkKey)), 0);
    }
  }

  PagePool& pool_;
  std::mt19937 rng_;
};

TEST_F(PrivateSlicesTest, RestorationsOfOneDocumentRaceAndAgree) {
  for (int seed = 0; seed < 30; ++seed) {
    ThreadedTier tier(/*delay_us_max=*/300, /*fail_percent=*/10, seed);
    const auto pool = std::move(PagePool::Create(kLayout, 300 * kLayout.page_bytes()).value());
    {
      const auto restorer = NewRestorer(*pool, {&tier}, cost_, Clock::Real());
      PrivateEngine engine(*pool, seed);
      std::vector<RestoreRequest> requests;
      std::vector<std::shared_ptr<Restoration>> open;
      for (int i = 0; i < 8; ++i) {
        requests.push_back(PrivateRequest(i % 2, 20 + i));
        open.push_back(restorer->Open(requests.back()));
      }
      size_t left = open.size();
      while (left > 0) {
        engine.wake = Clock::Real().Now() + Seconds(1);
        for (size_t i = 0; i < open.size(); ++i) {
          if (!open[i]) continue;
          CheckInvariants(*restorer);
          if (engine.Step(requests[i], *open[i])) continue;
          open[i].reset();
          --left;
        }
        if (left > 0) restorer->WaitForEvent(engine.wake);
      }
    }
    EXPECT_EQ(pool->Stats().referenced, 0u);
  }
}

}  // namespace
}  // namespace kvcake
