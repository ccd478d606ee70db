// What a Restorer makes of a tier's claims: nothing stays claimed or pinned of a prompt that ends,
// whenever the tier answers.
#include <gtest/gtest.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "cake/fake_engine_testing.h"
#include "cake/restorer_testing.h"
#include "store/memory_tier.h"

namespace kvcake {
namespace {

using testing_util::kLayout;

// Answers claims when it is told to, and notes what is given back and pinned.
class ClaimedTier : public MemoryTier {
 public:
  ClaimedTier() : MemoryTier({.layout = kLayout}) {}
  bool Claim(ClaimRequest request) override {
    asked.push_back(std::move(request));
    return claims;
  }
  void Disclaim(std::span<const ChunkKey> keys) override {
    disclaimed.insert(disclaimed.end(), keys.begin(), keys.end());
  }
  void Pin(std::span<const ChunkKey> keys) override { pins += static_cast<int>(keys.size()); }
  void Unpin(std::span<const ChunkKey> keys) override {
    pins -= static_cast<int>(keys.size());
    EXPECT_GE(pins, 0) << "an Unpin comes after its Pin";
  }

  std::vector<ChunkKey> Answer(ClaimState state) { return Answer(std::vector(4, state)); }
  std::vector<ChunkKey> Answer(const std::vector<ClaimState>& states) {
    const ClaimRequest request = std::move(asked.front());
    asked.pop_front();
    EXPECT_EQ(request.keys.size(), states.size());
    request.done(states);
    return request.keys;
  }

  bool claims = true;
  std::deque<ClaimRequest> asked;
  std::vector<ChunkKey> disclaimed;
  int pins = 0;
};

// Prompts of 8 chunks, which take a tenth of a second each.
class RestorerClaimsTest : public testing::Test {
 protected:
  RestorerClaimsTest() {
    for (int i = 0; i < 8; ++i) cost_.Add(i * 128, 128, Seconds(0.1));
    Restorer::Options options;
    options.claims.tier = 0;
    restorer_ = NewRestorer(*pool_, {&tier_}, cost_, clock_, options);
    request_.keeps_chunks = true;
  }
  // A prompt that has asked whether it may compute its first slice.
  std::shared_ptr<Restoration> Ask() {
    auto restoration = restorer_->Open(request_);
    EXPECT_EQ(restoration->NextTurn({.chunks = 4}).kind, ComputeTurn::Kind::kWait);
    EXPECT_EQ(tier_.asked.size(), 1u);
    CheckInvariants(*restorer_);
    return restoration;
  }

  FakeClock clock_;
  ComputeCost cost_;
  std::unique_ptr<PagePool> pool_ = PagePool::Create(kLayout, 32 * kLayout.page_bytes()).value();
  ClaimedTier tier_;
  RestoreRequest request_ = testing_util::Request(1, 8, Policy::kCake);
  std::unique_ptr<Restorer> restorer_;
};

TEST_F(RestorerClaimsTest, APromptThatEndsGivesItsClaimsBack) {
  const auto restoration = Ask();
  const auto keys = tier_.Answer(ClaimState::kMine);
  EXPECT_EQ(keys.size(), 4u);
  const ComputeTurn turn = restoration->NextTurn({.chunks = 4});
  ASSERT_EQ(turn.kind, ComputeTurn::Kind::kSlice);
  EXPECT_TRUE(restoration->IsClaimed(0) && restoration->IsClaimed(3));
  EXPECT_FALSE(restoration->IsClaimed(4)) << "it has been asked, and not been told";
  restoration->Abandon();
  EXPECT_EQ(tier_.disclaimed, keys);
  tier_.Answer(ClaimState::kNone);  // for the slice that was to follow
}

TEST_F(RestorerClaimsTest, SoDoesOneThatEndsBeforeItIsAnswered) {
  const auto restoration = Ask();
  restoration->Abandon();
  EXPECT_TRUE(tier_.disclaimed.empty());
  const auto keys = tier_.Answer(ClaimState::kMine);
  EXPECT_EQ(tier_.disclaimed, keys);
}

TEST_F(RestorerClaimsTest, WhatIsComputedStaysClaimedUntilItIsKept) {
  const auto restoration = Ask();
  const auto keys = tier_.Answer(ClaimState::kMine);
  const ComputeTurn turn = restoration->NextTurn({.chunks = 4});
  ASSERT_EQ(turn.kind, ComputeTurn::Kind::kSlice);
  restoration->Computed(turn.claim);
  const auto next = tier_.Answer(ClaimState::kMine);
  restoration->Abandon();
  EXPECT_EQ(tier_.disclaimed, next);
}

TEST_F(RestorerClaimsTest, WhatAnotherHasStoredIsPinnedAsLongAsThePromptIsThere) {
  const auto restoration = Ask();
  tier_.Answer(ClaimState::kStored);
  EXPECT_EQ(tier_.pins, 4);
  CheckInvariants(*restorer_);
  restoration->Abandon();
  EXPECT_EQ(tier_.pins, 0);
  // And when it has ended before.
  const auto second = Ask();
  second->Abandon();
  tier_.Answer(ClaimState::kStored);
  EXPECT_EQ(tier_.pins, 0);
}

TEST_F(RestorerClaimsTest, WhatAnotherHasStoredIsReadAtOnce) {
  const auto restoration = Ask();
  const std::vector<std::byte> page(kLayout.page_bytes());
  for (int i = 0; i < 4; ++i) {
    const ChunkKey parent = i == 0 ? request_.root : request_.keys[i - 1];
    ASSERT_TRUE(tier_.Put({.key = request_.keys[i], .parent = parent, .page = page}));
  }
  uint64_t seen = restorer_->EventsAfter(UINT64_MAX, TimePoint::max());
  tier_.Answer(ClaimState::kStored);
  while (restoration->Progress().loaded < 4 * 128) {
    seen = restorer_->EventsAfter(seen, TimePoint::max());
  }
  CheckInvariants(*restorer_);
}

TEST_F(RestorerClaimsTest, TheAnswerWakesWhoWaitsForItAndMoreThanItAllowsIsNotComputed) {
  const auto restoration = Ask();
  const uint64_t seen = restorer_->EventsAfter(UINT64_MAX, TimePoint::max());
  using enum ClaimState;
  tier_.Answer(std::vector{kMine, kMine, kTheirs, kNone});
  EXPECT_GT(restorer_->EventsAfter(UINT64_MAX, TimePoint::max()), seen);
  const ComputeTurn turn = restoration->NextTurn({.chunks = 4});
  ASSERT_EQ(turn.kind, ComputeTurn::Kind::kSlice);
  EXPECT_EQ(turn.claim.count, 2);
  restoration->Abandon();
  while (!tier_.asked.empty()) tier_.Answer(kNone);
}

TEST_F(RestorerClaimsTest, ATierThatMakesNoClaimsIsNotWaitedFor) {
  tier_.claims = false;
  const auto restoration = Ask();
  EXPECT_EQ(restoration->NextTurn({.chunks = 4}).kind, ComputeTurn::Kind::kSlice);
  restoration->Abandon();
  EXPECT_TRUE(tier_.disclaimed.empty());
}

}  // namespace
}  // namespace kvcake
