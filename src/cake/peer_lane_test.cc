#include "cake/peer_lane.h"

#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "cake/fake_engine_testing.h"
#include "store/memory_tier.h"

namespace kvcake {
namespace {

// One prompt of 20 chunks of a tenth of a second, of which no tier holds any.
class PeerLaneTest : public testing::Test {
 protected:
  using enum ClaimState;
  using Keys = std::vector<ChunkKey>;

  void Start(int claims_tier = 0, bool keeps_chunks = true) {
    if (knows_cost_) Learn();
    pool_ = std::move(
        PagePool::Create(testing_util::kLayout, 64 * testing_util::kLayout.page_bytes()).value());
    Restorer::Options options;
    options.claims.tier = claims_tier;
    context_ = std::make_unique<RestoreContext>(RestoreContext{*pool_, cost_, clock_, options});
    lanes_.emplace_back(*context_, tier_);
    planner_ = std::make_unique<RestorePlanner>(*context_, lanes_, table_);
    lane_ = std::make_unique<PeerLane>(*context_, RestoreParts{lanes_, table_, *planner_, calls_});
    RestoreRequest request = testing_util::Request(1, 20, policy_);
    request.forced_split = forced_split_;
    request.keeps_chunks = keeps_chunks;
    request.private_slices = private_slices_;
    board_ = std::make_unique<Board>(*context_, request, 1, 1);
    table_.Add(*board_);
  }
  void Learn() {
    for (int i = 0; i < 8; ++i) cost_.Add(i * 128, 128, chunk_);
  }
  void SetLink(double chunk_s) {
    const double bytes = context_->chunk_bytes();
    ASSERT_TRUE(lanes_[0].cost().FromJson(
        {{"version", 1}, {"fixed_s", 0}, {"bytes_per_s", bytes / chunk_s}, {"read_bytes", bytes}}));
  }
  void Stop() {
    table_.Remove(*board_);
    board_.reset();
    lanes_.clear();
    calls_ = {};
  }
  PeerTurn Turn() {
    planner_->MakePlanFor(*board_, 4);
    return lane_->NextTurn(*board_);
  }
  // The tier's answer to the last question.
  void Answer(std::vector<ClaimState> states) {
    ASSERT_EQ(calls_.claims.size(), 1u);
    const ClaimCall call = std::move(calls_.claims[0]);
    calls_.claims.clear();
    states.resize(call.keys.size(), kNone);
    lane_->Answered(*board_, call, states);
  }
  // Chunks [first, first + count) of the prompt, of which the tier is asked.
  Keys KeysOf(int first, int count) const {
    const auto& keys = board_->request().keys;
    return {keys.begin() + first, keys.begin() + first + count};
  }
  // Takes turns until it computes what another has claimed and does not make. Returns how long.
  Seconds WaitForTheirs() {
    const TimePoint began = clock_.Now();
    PeerTurn turn = Turn();
    for (int looks = 0; turn.chunks == 0 && looks < 200; ++looks) {
      clock_.AdvanceTo(turn.wait_until);
      if (!calls_.claims.empty()) Answer({kTheirs});
      turn = Turn();
    }
    EXPECT_EQ(turn.chunks, 4);
    return clock_.Now() - began;
  }
  Keys Asked() const { return calls_.claims.empty() ? Keys() : calls_.claims.back().keys; }
  // Others have chunks up to this one in memory.
  void ReachFront(int front) {
    for (int i = board_->claims().first_missing(); i < front; ++i) {
      board_->Adopt(i, pool_->Publish(std::move(*pool_->Draw()), board_->key(i), {}));
    }
  }
  void AdoptOfAnotherPath(int chunk) {
    auto page = pool_->Publish(std::move(*pool_->Draw()), board_->key(chunk), NumericPath::kF32);
    board_->Adopt(chunk, std::move(page));
  }

  Seconds chunk_{0.1};  // that computing one takes
  bool private_slices_ = false;
  bool knows_cost_ = true;
  Policy policy_ = Policy::kCake;
  std::optional<int> forced_split_;
  FakeClock clock_;
  ComputeCost cost_;
  std::unique_ptr<PagePool> pool_;
  std::unique_ptr<RestoreContext> context_;
  MemoryTier tier_{{.layout = testing_util::kLayout}};
  std::vector<LoadLane> lanes_;
  InFlightTable table_;
  TierCalls calls_;
  std::unique_ptr<RestorePlanner> planner_;
  std::unique_ptr<PeerLane> lane_;
  std::unique_ptr<Board> board_;
};

TEST_F(PeerLaneTest, ASliceIsClaimedBeforeItIsComputedAndTheNextMeanwhile) {
  Start();
  const PeerTurn turn = Turn();
  EXPECT_EQ(turn.chunks, 0);
  EXPECT_LE(turn.wait_until - clock_.Now(), Seconds(0.2 * chunk_.count() + 1e-6));
  EXPECT_EQ(Asked(), KeysOf(0, 4));
  Answer(std::vector(4, kMine));
  EXPECT_EQ(Turn().chunks, 4);
  lane_->Began(*board_, {.first = 0, .count = 4});
  EXPECT_EQ(Asked(), KeysOf(4, 4));
  Answer(std::vector(4, kMine));
  ReachFront(4);
  EXPECT_EQ(Turn().chunks, 4) << "nobody waits for an answer any more";
  lane_->Ended(*board_);
  EXPECT_EQ(calls_.disclaims, KeysOf(4, 4)) << "what is computed is kept, and ends then";
}

TEST_F(PeerLaneTest, NobodyWaitsLongForAnAnswer) {
  Start();
  const PeerTurn turn = Turn();
  clock_.AdvanceTo(turn.wait_until);
  EXPECT_EQ(Turn().chunks, 4);
  EXPECT_EQ(calls_.claims.size(), 1u) << "one question at a time";
}

// A store that answers while the slice is computed: the next one's answer is there in time.
TEST_F(PeerLaneTest, AStoreThatIsSlowToAnswerIsWaitedForOnce) {
  Start();
  clock_.AdvanceTo(Turn().wait_until);
  EXPECT_EQ(Turn().chunks, 4);
  board_->BeginSlice({.claim = {.first = 0, .count = 4}});
  lane_->Began(*board_, {.first = 0, .count = 4});
  EXPECT_EQ(Asked(), KeysOf(0, 4)) << "one question at a time";
  Answer(std::vector(4, kMine));
  EXPECT_EQ(Asked(), KeysOf(4, 4));
  Answer({kMine, kMine, kTheirs, kNone});
  EXPECT_TRUE(calls_.claims.empty()) << "it is asked again when it is wanted";
}

// Another numeric path's: what is computed after it is offered to no store.
TEST_F(PeerLaneTest, WhatWillNotBeKeptIsNotWaitedFor) {
  Start();
  Turn();
  Answer(std::vector(4, kMine));
  AdoptOfAnotherPath(10);
  EXPECT_EQ(Turn().chunks, 4);
  EXPECT_EQ(Turn().chunks, 4);
  EXPECT_EQ(calls_.disclaims, KeysOf(0, 4)) << "once";
  calls_.disclaims.clear();
  lane_->Began(*board_, {.first = 0, .count = 4});
  EXPECT_EQ(Asked(), KeysOf(4, 4)) << "others may be at it, and keep it";
  Answer({kMine, kMine, kTheirs});
  EXPECT_EQ(calls_.disclaims, KeysOf(4, 2));
  ReachFront(4);
  EXPECT_EQ(Turn().chunks, 2) << "what is free";
  lane_->Ended(*board_);
  EXPECT_EQ(calls_.disclaims, KeysOf(4, 2)) << "once";
}

TEST_F(PeerLaneTest, WhatIsComputedBeforeItsAnswerComesIsGivenBack) {
  Start();
  Turn();
  ReachFront(2);
  Answer(std::vector(4, kMine));
  EXPECT_EQ(calls_.disclaims, KeysOf(0, 2));
  EXPECT_EQ(Turn().chunks, 2) << "these are its own";
}

TEST_F(PeerLaneTest, WhatAnotherPromptComputesIsNotGivenBack) {
  Start();
  Turn();
  Answer(std::vector(4, kMine));
  RestoreRequest request = testing_util::Request(1, 20, Policy::kCake);
  Board other(*context_, request, 2, 2);
  table_.Add(other);
  other.peers().Decide(true);
  for (const int i : {1, 2}) other.peers().Set(i, PeerState::kMine);
  lane_->Ended(*board_);
  EXPECT_EQ(calls_.disclaims, (Keys{board_->key(0), board_->key(3)}));
  calls_.disclaims.clear();
  board_->peers().Set(3, PeerState::kUnasked);
  lane_->EndedBefore({.chunks = {2, 3}, .keys = KeysOf(2, 2)}, {kMine, kMine});
  EXPECT_EQ(calls_.disclaims, Keys{board_->key(3)});
  lane_->EndedBefore({.chunks = {4, 5}, .keys = KeysOf(4, 2)}, {kTheirs, kNone});
  EXPECT_EQ(calls_.disclaims.size(), 1u) << "these were not its own";
  table_.Remove(other);
}

TEST_F(PeerLaneTest, WhereNothingCanBeClaimedAllIsComputed) {
  Start();
  Turn();
  Answer(std::vector(4, kNone));
  EXPECT_EQ(Turn().chunks, 4);
}

TEST_F(PeerLaneTest, OnlyWhatIsClaimedIsComputed) {
  Start();
  Turn();
  Answer({kMine, kMine, kTheirs, kNone});
  EXPECT_EQ(Turn().chunks, 2);
  ReachFront(3);
  EXPECT_EQ(Turn().chunks, 0) << "what is behind another's was not asked for";
  EXPECT_EQ(Asked(), KeysOf(3, 4));
}

TEST_F(PeerLaneTest, AnothersChunksAreWaitedForAndAskedForUntilTheyCome) {
  Start();
  Turn();
  Answer({kTheirs});
  PeerTurn turn = Turn();
  EXPECT_EQ(turn.chunks, 0);
  EXPECT_TRUE(calls_.claims.empty()) << "not at once";
  clock_.AdvanceTo(turn.wait_until);
  EXPECT_EQ(Turn().chunks, 0);
  EXPECT_EQ(Asked(), KeysOf(0, 4)) << "a slice that is free is its own";
  clock_.Advance(Seconds(0.1));
  EXPECT_GT(Turn().wait_until, clock_.Now()) << "nobody asks all the time";
  Answer(std::vector(4, kStored));
  for (int i = 0; i < 4; ++i) board_->AddLoadable(i, 0);  // as the Restorer does
  ReachFront(4);
  EXPECT_EQ(Turn().chunks, 0);
  EXPECT_EQ(Asked(), KeysOf(4, 4));
  EXPECT_TRUE(board_->peers().has_waited());
}

TEST_F(PeerLaneTest, OneThatDoesNotComeIsComputed) {
  Start();
  Turn();
  Answer({kTheirs});
  const Seconds waited = WaitForTheirs();
  EXPECT_GT(waited, Seconds(0.4)) << "a slice's time";
  EXPECT_LT(waited, Seconds(0.6));
}

// What waiting has cost is paid back by what has come of it, and not by what was computed after
// all.
TEST_F(PeerLaneTest, OneThatHasGivenMuchIsWaitedForAsEver) {
  const auto wait_again = [&](bool computes) {
    Start();
    const TimePoint began = clock_.Now();
    Turn();
    Answer({kTheirs});
    while (clock_.Now() < began + Seconds(0.3)) {
      const PeerTurn turn = Turn();
      EXPECT_EQ(turn.chunks, 0);
      clock_.AdvanceTo(turn.wait_until);
      if (!calls_.claims.empty()) Answer({kTheirs});
    }
    clock_.AdvanceTo(Turn().wait_until);
    Turn();
    Answer(std::vector(4, kStored));
    if (computes) lane_->Began(*board_, {.first = 0, .count = 4});
    if (!calls_.claims.empty()) Answer({kTheirs});
    ReachFront(4);
    Turn();
    if (!calls_.claims.empty()) Answer({kTheirs});
    const Seconds waited = WaitForTheirs();
    Stop();
    return waited;
  };
  EXPECT_GT(wait_again(/*computes=*/false), Seconds(0.4));
  EXPECT_LT(wait_again(/*computes=*/true), Seconds(0.4));
}

// Prompts of this process that compute too have turns of their own, here as there.
TEST_F(PeerLaneTest, WherePromptsTakeTurnsOneThatDoesNotComeIsGivenMoreTime) {
  Start();
  Board second(*context_, testing_util::Request(2, 20, Policy::kCake), 2, 1);
  Board third(*context_, testing_util::Request(3, 20, Policy::kCake), 3, 1);
  Board done(*context_, testing_util::Request(4, 0, Policy::kCake), 4, 1);
  for (Board* other : {&second, &third, &done}) table_.Add(*other);
  Turn();
  Answer({kTheirs});
  const Seconds waited = WaitForTheirs();
  EXPECT_GT(waited, Seconds(3 * 0.4));
  EXPECT_LT(waited, Seconds(3 * 0.6));
  for (Board* other : {&second, &third, &done}) table_.Remove(*other);
}

TEST_F(PeerLaneTest, NobodyWaitsForALinkThatIsSlowerThanComputing) {
  Start();
  SetLink(/*chunk_s=*/0.2);
  Turn();
  Answer({kTheirs});
  EXPECT_EQ(Turn().chunks, 4);
}

TEST_F(PeerLaneTest, NobodyWaitsForAStoreThatFails) {
  Start();
  Turn();
  Answer({kTheirs});
  EXPECT_EQ(Turn().chunks, 0);
  for (int i = 0; i < context_->options.failures_max; ++i) board_->NoteFailure(0);
  EXPECT_EQ(Turn().chunks, 4);
}

TEST_F(PeerLaneTest, NobodyWaitsForAStoreThatSaysNothing) {
  Start();
  lanes_[0].BeginLook();
  clock_.Advance(context_->options.stall_timeout + Seconds(1));
  lanes_[0].CheckStall();
  ASSERT_TRUE(lanes_[0].stalled());
  Turn();
  Answer({kTheirs});
  EXPECT_EQ(Turn().chunks, 4);
}

TEST_F(PeerLaneTest, AClaimLastsForAWhileAtLeast) {
  Start();
  Turn();
  ASSERT_EQ(calls_.claims.size(), 1u);
  EXPECT_EQ(calls_.claims[0].lasts, context_->options.claims.lasts_min);
}

// Else others would compute what is under way.
TEST_F(PeerLaneTest, AClaimOfLongSlicesLastsLonger) {
  chunk_ = Seconds(10);
  Start();
  Turn();
  ASSERT_EQ(calls_.claims.size(), 1u);
  EXPECT_NEAR(calls_.claims[0].lasts.count(), 4 * 4 * 10, 1);
}

TEST_F(PeerLaneTest, AClaimLastsByWhatItsSliceTakesWhereItIs) {
  knows_cost_ = false;
  for (int i = 0; i < 16; ++i) cost_.Add(i * 128, 128, Seconds(1 + i));
  Start();
  ReachFront(12);
  Turn();
  ASSERT_EQ(calls_.claims.size(), 1u);
  const ComputeFit fit = cost_.fit();
  ASSERT_GT(fit.SecondsFor(12 * 128, 4 * 128), 2 * fit.SecondsFor(0, 4 * 128));
  EXPECT_NEAR(calls_.claims[0].lasts.count(), 4 * fit.SecondsFor(12 * 128, 4 * 128), 1e-6);
}

TEST_F(PeerLaneTest, WhatIsHereOrStoredNeedsNoClaim) {
  Start();
  SetLink(/*chunk_s=*/10);
  for (const int chunk : {1, 4, 5, 6, 7}) board_->AddLoadable(chunk, 0);
  board_->Adopt(3, pool_->Publish(std::move(*pool_->Draw()), board_->key(3), {}));
  Turn();
  EXPECT_EQ(Asked(), (Keys{board_->key(0), board_->key(2)}));
  Answer(std::vector(2, kMine));
  EXPECT_EQ(Turn().chunks, 3);
  lane_->Began(*board_, {.first = 0, .count = 4});
  EXPECT_TRUE(calls_.claims.empty()) << "of what follows nothing need be asked";
  EXPECT_FALSE(board_->peers().asking());
}

TEST_F(PeerLaneTest, OnlyWhatIsNotKnownIsAskedAhead) {
  Start();
  Turn();
  Answer(std::vector(4, kMine));
  lane_->Began(*board_, {.first = 0, .count = 2});
  EXPECT_EQ(Asked(), KeysOf(4, 2)) << "the rest of the slice is its own";
  Answer(std::vector(2, kMine));
  ReachFront(16);
  Turn();
  Answer(std::vector(4, kNone));
  lane_->Began(*board_, {.first = 16, .count = 2});
  EXPECT_TRUE(calls_.claims.empty()) << "nobody can claim what is left";
}

TEST_F(PeerLaneTest, ATierThatMakesNoClaimsIsNotAskedAgainForTheSlice) {
  Start();
  clock_.AdvanceTo(Turn().wait_until);
  board_->BeginSlice({.claim = {.first = 0, .count = 4}});
  lane_->Began(*board_, {.first = 0, .count = 4});
  ASSERT_EQ(calls_.claims.size(), 1u);
  const ClaimCall call = std::exchange(calls_.claims, {}).front();
  lane_->Answered(*board_, call, {});
  EXPECT_TRUE(calls_.claims.empty());
}

// It is this process's to keep.
TEST_F(PeerLaneTest, WhatAnotherPromptHereHasMadeIsNotGivenBack) {
  Start();
  Turn();
  Answer(std::vector(4, kMine));
  board_->Adopt(2, pool_->Publish(std::move(*pool_->Draw()), board_->key(2), {}));
  lane_->Ended(*board_);
  EXPECT_EQ(calls_.disclaims, (Keys{board_->key(0), board_->key(1), board_->key(3)}));
}

// What it costs is not known before the first slices have told.
TEST_F(PeerLaneTest, APromptTakesPartAsSoonAsItsCostIsKnown) {
  knows_cost_ = false;
  Start();
  SetLink(/*chunk_s=*/10);
  EXPECT_GT(Turn().chunks, 0);
  EXPECT_TRUE(calls_.empty());
  Learn();
  EXPECT_EQ(Turn().chunks, 0);
  EXPECT_EQ(Asked(), KeysOf(0, 4));
}

TEST_F(PeerLaneTest, NothingIsClaimedForPromptsThatAreShortOrHaveNoChoice) {
  const auto claims = [&](Policy policy, std::optional<int> forced_split, double chunk_s) {
    policy_ = policy;
    forced_split_ = forced_split;
    chunk_ = Seconds(chunk_s);
    Start();
    Turn();
    const bool any = !calls_.empty();
    Stop();
    return any;
  };
  EXPECT_FALSE(claims(Policy::kCake, {}, 5e-3)) << "a tenth of a second";
  for (int i = 0; i < 128; ++i) cost_.Add(0, 128, Seconds(0.1));
  EXPECT_FALSE(claims(Policy::kCompute, {}, 0.1));
  EXPECT_FALSE(claims(Policy::kCake, 20, 0.1));
  EXPECT_TRUE(claims(Policy::kCake, {}, 0.1));
}

// Nobody else gets what it computes.
TEST_F(PeerLaneTest, NothingIsClaimedForPrivateSlices) {
  private_slices_ = true;
  Start();
  EXPECT_EQ(Turn().chunks, 4);
  lane_->Began(*board_, {.first = 0, .count = 4});
  EXPECT_TRUE(calls_.empty());
}

TEST_F(PeerLaneTest, NothingIsClaimedWhereNothingIsKept) {
  for (const bool keeps : {false, true}) {
    Start(keeps ? -1 : 0, keeps);
    EXPECT_EQ(Turn().chunks, 4);
    lane_->Began(*board_, {.first = 0, .count = 4});
    lane_->Ended(*board_);
    EXPECT_TRUE(calls_.empty());
    Stop();
  }
}

}  // namespace
}  // namespace kvcake
