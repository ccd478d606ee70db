#include "store/late_tier.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "store/faulty_tier_testing.h"
#include "store/memory_tier.h"
#include "store/tier_testing.h"

namespace kvcake {
namespace {

using namespace testing_util;

class LateTierTest : public testing::Test {
 protected:
  std::unique_ptr<Tier> MakeMemory() {
    auto memory = std::make_unique<MemoryTier>(MemoryTierOptions{.layout = layout_});
    for (size_t i = 0; i < chain_.size(); ++i) {
      CHECK(PutChunk(*memory, layout_, chain_[i], ParentOf(chain_, i)));
    }
    return memory;
  }
  void Start(Tier& tier, size_t i) { reads_.Start(tier, layout_, chain_[i], ParentOf(chain_, i)); }

  const KvLayout layout_ = SmallLayout();
  const std::vector<ChunkKey> chain_ = Chain(4);
  Reads reads_;  // outlives the tiers
};

TEST_F(LateTierTest, ALateReadAnswersThatMuchLaterAndRight) {
  const Seconds delay(0.02);
  LateTier tier(MakeMemory(), {.share = 1, .delay = delay});
  const TimePoint began = Clock::Real().Now();
  Start(tier, 0);
  EXPECT_TRUE(reads_.Wait(0).status);
  EXPECT_GE(Clock::Real().Now() - began, delay);
  EXPECT_TRUE(HoldsChunk(chain_[0], reads_.landing(0)));
}

TEST_F(LateTierTest, ALateWriteKeepsItsChunkAfterThatLong) {
  const Seconds delay(0.02);
  LateTier tier(std::make_unique<MemoryTier>(MemoryTierOptions{.layout = layout_}),
                {.write_share = 1, .write_delay = delay});
  const TimePoint began = Clock::Real().Now();
  EXPECT_TRUE(PutChunk(tier, layout_, chain_[0], ParentOf(chain_, 0)));
  EXPECT_GE(Clock::Real().Now() - began, delay);
  EXPECT_TRUE(tier.Residency(chain_)[0]);
}

TEST_F(LateTierTest, TheSeedDecidesWhichReadsAreLate) {
  // The order of the answers of 100 reads: those that are late come last, at the tier's end.
  const auto order = [&](uint64_t seed, double share) {
    Reads reads;
    {
      LateTier tier(MakeMemory(), {.seed = seed, .share = share, .delay = Seconds(3600)});
      for (size_t i = 0; i < 100; ++i) {
        const size_t chunk = i % chain_.size();
        reads.Start(tier, layout_, chain_[chunk], ParentOf(chain_, chunk));
      }
    }
    return reads.order();
  };
  const auto late = [&](uint64_t seed, double share) {
    const std::vector<size_t> all = order(seed, share);
    return all.end() - std::is_sorted_until(all.begin(), all.end());
  };
  EXPECT_EQ(order(1, 0.3), order(1, 0.3));
  EXPECT_NE(order(1, 0.3), order(2, 0.3));
  EXPECT_GT(late(1, 0.3), 15);
  EXPECT_LT(late(1, 0.3), 45);
  EXPECT_EQ(late(1, 0), 0);
}

TEST_F(LateTierTest, ItsEndWaitsForNoLateAnswer) {
  auto tier =
      std::make_unique<LateTier>(MakeMemory(), LateTierOptions{.share = 1, .delay = Seconds(3600)});
  for (size_t i = 0; i < chain_.size(); ++i) Start(*tier, i);
  tier->Cancel(reads_.id(0));
  tier.reset();
  for (size_t i = 0; i < chain_.size(); ++i) EXPECT_EQ(reads_.answers(i), 1);
}

TEST_F(LateTierTest, ItsEndCancelsWhatTheInnerTierDoesNotAnswer) {
  auto stalled = std::make_unique<FaultyTier>(MakeMemory(), FaultyTierOptions{.read_stall = 1});
  auto tier = std::make_unique<LateTier>(std::move(stalled), LateTierOptions{});
  Start(*tier, 0);
  tier.reset();
  EXPECT_EQ(reads_.Wait(0).status.error().code, ErrorCode::kCancelled);
}

}  // namespace
}  // namespace kvcake
