// What claims promise, run against every tier and decorator.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "store/tier_cases_testing.h"

namespace kvcake {
namespace {

using namespace testing_util;

class TierClaimsTest : public testing::TestWithParam<TierCase> {
 protected:
  World world_;
  std::unique_ptr<Tier> tier_ = GetParam().make(world_);
  const KvLayout& layout_ = world_.layout;
  std::vector<ChunkKey> chain_ = Chain(12);
};

TEST_P(TierClaimsTest, AClaimIsAnsweredOnceOrThereAreNone) {
  ASSERT_TRUE(PutChunk(*tier_, layout_, chain_[0], Root()));
  tier_->Disclaim(chain_);  // of what is not claimed it does nothing
  const auto states = ClaimKeys(*tier_, {chain_[0], chain_[1], chain_[2]});
  ASSERT_EQ(states.has_value(), GetParam().another != nullptr);
  if (!states) return;
  using enum ClaimState;
  EXPECT_EQ(*states, (std::vector{kStored, kMine, kMine}));
  EXPECT_EQ(ClaimKey(*tier_, chain_[1]), kMine) << "a claim may be made again";
  ASSERT_TRUE(PutChunk(*tier_, layout_, chain_[1], chain_[0]));
  EXPECT_EQ(ClaimKey(*tier_, chain_[1]), kStored);
  EXPECT_TRUE(ClaimKeys(*tier_, {})->empty());
}

TEST_P(TierClaimsTest, OneProcessHasAClaim) {
  if (!GetParam().another) return;
  using enum ClaimState;
  const auto other = GetParam().another(world_);
  EXPECT_EQ(*ClaimKeys(*tier_, {chain_[0], chain_[1]}), (std::vector{kMine, kMine}));
  EXPECT_EQ(*ClaimKeys(*other, {chain_[0], chain_[1], chain_[2]}),
            (std::vector{kTheirs, kNone, kNone}))
      << "nothing behind another's is claimed";
  EXPECT_EQ(ClaimKey(*tier_, chain_[2]), kMine);
  // A Put ends it, whether it was of use or not.
  ASSERT_TRUE(PutChunk(*tier_, layout_, chain_[0], Root()));
  EXPECT_EQ(*ClaimKeys(*other, {chain_[0], chain_[1]}), (std::vector{kStored, kTheirs}));
  tier_->Disclaim(std::vector{chain_[1]});
  EXPECT_TRUE(Eventually([&] { return ClaimKey(*other, chain_[1]) == kMine; }));
  EXPECT_EQ(ClaimKey(*tier_, chain_[1]), kTheirs);
  tier_.reset();
  EXPECT_EQ(ClaimKey(*other, chain_[2]), kMine) << "claims end with who made them";
}

// A claim of one prompt is not ended by another prompt of the process, which asks for it behind
// what another process has, and so does not get it.
TEST_P(TierClaimsTest, AClaimBehindAnothersStaysWhoseItWas) {
  if (!GetParam().another) return;
  using enum ClaimState;
  const auto other = GetParam().another(world_);
  EXPECT_EQ(ClaimKey(*tier_, chain_[1]), kMine);
  EXPECT_EQ(ClaimKey(*other, chain_[0]), kMine);
  EXPECT_EQ(*ClaimKeys(*tier_, {chain_[0], chain_[1]}), (std::vector{kTheirs, kNone}));
  // What that ends has ended by the time that this is answered.
  EXPECT_EQ(ClaimKey(*tier_, chain_[2]), kMine);
  EXPECT_EQ(ClaimKey(*other, chain_[1]), kTheirs);
}

TEST_P(TierClaimsTest, AClaimEndsWithItsPut) {
  if (!GetParam().another) return;
  using enum ClaimState;
  const auto other = GetParam().another(world_);
  EXPECT_EQ(ClaimKey(*tier_, chain_[0]), kMine);
  ASSERT_TRUE(PutChunk(*tier_, layout_, chain_[0], Root()));
  ASSERT_TRUE(other->Evict(chain_[0]));
  EXPECT_TRUE(Eventually([&] { return ClaimKey(*other, chain_[0]) == kMine; }));
}

// Whatever the Put finds: what another has put is no work, and ends the claim all the same.
TEST_P(TierClaimsTest, APutOfWhatIsThereEndsTheClaim) {
  if (!GetParam().another) return;
  using enum ClaimState;
  const auto other = GetParam().another(world_);
  EXPECT_EQ(ClaimKey(*tier_, chain_[0]), kMine);
  ASSERT_TRUE(PutChunk(*other, layout_, chain_[0], Root()));
  ASSERT_EQ(Held(*tier_, {chain_[0]}), std::vector{true});
  ASSERT_TRUE(PutChunk(*tier_, layout_, chain_[0], Root()));
  ASSERT_TRUE(other->Evict(chain_[0]));
  EXPECT_TRUE(Eventually([&] { return ClaimKey(*other, chain_[0]) == kMine; }));
}

TEST_P(TierClaimsTest, ClaimsFromManyThreadsAreAllAnswered) {
  if (!GetParam().another) return;
  std::atomic<int> answers = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 20; ++i) {
        const bool asked = tier_->Claim(
            {.keys = chain_, .lasts = kPatience, .done = [&](const auto&) { ++answers; }});
        if (!asked) ++answers;
        tier_->Disclaim(chain_);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  tier_.reset();  // waits for the last of them
  EXPECT_EQ(answers, 4 * 20);
}

INSTANTIATE_TEST_SUITE_P(Tiers, TierClaimsTest, testing::ValuesIn(kCases),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace kvcake
