#include "cake/compute_lane.h"

#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "cake/fake_engine_testing.h"
#include "store/memory_tier.h"

namespace kvcake {
namespace {

using testing_util::kLayout;
using Kind = ComputeTurn::Kind;

// Two prompts on a link that takes `chunk_s` for a chunk; computing one takes ten milliseconds.
class ComputeLaneTest : public testing::Test {
 protected:
  void Start(double chunk_s, int pages = 64) {
    for (int i = 0; i < 8; ++i) cost_.Add(i * 128, 128, Seconds(10e-3));
    pool_ = std::move(PagePool::Create(kLayout, pages * kLayout.page_bytes()).value());
    // A plan is kept for longer than any wait of these.
    context_ = std::make_unique<RestoreContext>(
        RestoreContext{*pool_, cost_, clock_, {.plan_interval = Seconds(1e-3)}});
    lanes_.emplace_back(*context_, tier_);
    SetLink(chunk_s);
    planner_ = std::make_unique<RestorePlanner>(*context_, lanes_, table_);
    const RestoreParts parts{lanes_, table_, *planner_, calls_};
    loads_ = std::make_unique<LoadScheduler>(*context_, parts);
    peers_ = std::make_unique<PeerLane>(*context_, parts);
    compute_ = std::make_unique<ComputeLane>(*context_, parts, *loads_, *peers_);
    for (int document = 1; document <= 2; ++document) {
      boards_.push_back(std::make_unique<Board>(
          *context_, testing_util::Request(document, kChunks, Policy::kCake), document, 1));
      boards_.back()->SetLoadable(0, std::vector<bool>(kChunks, true));
      table_.Add(*boards_.back());
    }
  }
  void Stop() {
    for (const auto& board : boards_) table_.Remove(*board);
    boards_.clear();
    lanes_.clear();
    calls_ = {};
  }
  void SetLink(double chunk_s) {
    const double bytes = static_cast<double>(kLayout.page_bytes());
    EXPECT_TRUE(lanes_[0].cost().FromJson(
        {{"version", 1}, {"fixed_s", 0}, {"bytes_per_s", bytes / chunk_s}, {"read_bytes", bytes}}));
  }
  ComputeTurn Ask(int board, int chunks) {
    return compute_->NextTurn(*boards_[board], {.chunks = chunks, .share = 1});
  }
  // Computes the first board's next slice, which takes so long, while one of its chunks comes.
  void ComputeBesideALoad(double seconds) {
    ASSERT_EQ(Ask(0, 4).kind, Kind::kSlice);
    clock_.Advance(Seconds(seconds));
    ASSERT_FALSE(calls_.gets.empty());
    Deliver(calls_.gets.front());
    compute_->Computed(*boards_[0], boards_[0]->slice()->claim.count);
  }
  void Deliver(const TierCalls::Get& get) {
    loads_->EndRead(get.tier, get.number,
                    {.status = {}, .bytes = kLayout.page_bytes(), .numeric_path = {}});
  }
  TimePoint Made(int board) const { return boards_[board]->plan()->made; }
  void Pass(double share_of_hold) { clock_.Advance(share_of_hold * planner_->HoldTime()); }

  static constexpr int kChunks = 20;
  FakeClock clock_;
  ComputeCost cost_;
  std::unique_ptr<PagePool> pool_;
  std::unique_ptr<RestoreContext> context_;
  MemoryTier tier_{{.layout = kLayout}};
  std::vector<LoadLane> lanes_;
  InFlightTable table_;
  TierCalls calls_;
  std::unique_ptr<RestorePlanner> planner_;
  std::unique_ptr<LoadScheduler> loads_;
  std::unique_ptr<PeerLane> peers_;
  std::unique_ptr<ComputeLane> compute_;
  std::vector<std::unique_ptr<Board>> boards_;
};

TEST_F(ComputeLaneTest, AWaitIsSaidAgainWhileItsPlanHolds) {
  Start(/*chunk_s=*/10e-6);
  const ComputeTurn wait = Ask(0, 4);
  ASSERT_EQ(wait.kind, Kind::kWait);
  EXPECT_GE(wait.wait_until, clock_.Now() + planner_->HoldTime());
  EXPECT_TRUE(boards_[0]->waiting());
  EXPECT_GT(boards_[0]->Report().predicted_s, 0);
  const TimePoint made = Made(0);
  Pass(0.5);
  EXPECT_EQ(Ask(0, 4).kind, Kind::kWait);
  EXPECT_EQ(Made(0), made);
  Pass(0.6);
  EXPECT_EQ(Ask(0, 4).kind, Kind::kWait);
  EXPECT_GT(Made(0), made);
}

TEST_F(ComputeLaneTest, AWaitForTheFirstChunkEndsWhenItComes) {
  Start(/*chunk_s=*/10e-6);
  ASSERT_EQ(Ask(0, 4).kind, Kind::kWait);
  const TimePoint made = Made(0);
  Pass(0.1);
  boards_[0]->Adopt(0, pool_->Publish(std::move(*pool_->Draw()), boards_[0]->key(0), {}));
  Ask(0, 4);
  EXPECT_GT(Made(0), made);
}

TEST_F(ComputeLaneTest, AWaitForTheFirstChunkEndsWhenAnotherPromptTakesIt) {
  Start(/*chunk_s=*/10e-6);
  ASSERT_EQ(Ask(0, 4).kind, Kind::kWait);
  const TimePoint made = Made(0);
  Pass(0.1);
  boards_[0]->claims().MarkElsewhere(0);
  Ask(0, 4);
  EXPECT_GT(Made(0), made);
}

TEST_F(ComputeLaneTest, ThatASliceIsWorthComputingIsSaidAgainUntilThereIsRoomForOne) {
  Start(/*chunk_s=*/10);
  ASSERT_EQ(Ask(0, 0).kind, Kind::kStarved);
  const TimePoint made = Made(0);
  Pass(0.5);
  EXPECT_EQ(Ask(0, 0).kind, Kind::kStarved);
  EXPECT_EQ(Made(0), made);
  const ComputeTurn slice = Ask(0, 2);
  ASSERT_EQ(slice.kind, Kind::kSlice);
  EXPECT_EQ(slice.claim.count, 2) << "no more than there is room for";
  EXPECT_GT(Made(0), made) << "a slice is begun by a new plan";
}

TEST_F(ComputeLaneTest, WhatANewPlanLeavesToTheLoadsIsReadAtOnce) {
  for (const double chunk_s : {10e-3, 10e-6}) {  // beside a slice, and in its place
    Start(/*chunk_s=*/10);
    ASSERT_EQ(Ask(0, 0).kind, Kind::kStarved);
    ASSERT_TRUE(calls_.gets.empty()) << "the link is too slow";
    SetLink(chunk_s);
    Pass(0.5);
    EXPECT_EQ(Ask(0, 4).kind, chunk_s < 1e-3 ? Kind::kWait : Kind::kSlice);
    EXPECT_FALSE(calls_.gets.empty());
    Stop();
  }
}

TEST_F(ComputeLaneTest, WithoutAShareOfStepsAllIsLeftToTheLoads) {
  Start(/*chunk_s=*/10e-3);
  const ComputeTurn wait = compute_->NextTurn(*boards_[0], {.chunks = 4, .share = 0});
  EXPECT_EQ(wait.kind, Kind::kWait);
  EXPECT_EQ(boards_[0]->Report().reasons.back(), "other requests have the compute: loads only");
  EXPECT_FALSE(boards_[0]->waiting()) << "that is not the planner's wish";
  EXPECT_EQ(Ask(0, 4).kind, Kind::kSlice);
}

// Others fill the steps that it shares.
TEST_F(ComputeLaneTest, ASliceThatHasAShareOfItsStepsTakesAsLongAsAFullOne) {
  Start(/*chunk_s=*/10);
  const ComputeTurn slice = compute_->NextTurn(*boards_[0], {.chunks = 2, .share = 0.5});
  ASSERT_EQ(slice.kind, Kind::kSlice);
  ASSERT_EQ(slice.claim.count, 2);
  EXPECT_GT(boards_[0]->Report().predicted_s, 0);
  EXPECT_EQ(boards_[0]->Report().reasons.back(), "slice of 2 chunks at token 0");
  clock_.Advance(Seconds(4 * 10e-3));
  compute_->Computed(*boards_[0], 2);
  EXPECT_EQ(boards_[0]->Report().slices, 1);
  EXPECT_NEAR(boards_[0]->Report().slice_error, 0, 0.01);
}

TEST_F(ComputeLaneTest, WithoutAFreePageASliceIsAskedForAgainSoon) {
  Start(/*chunk_s=*/10, /*pages=*/1);
  PageHandle taken = std::move(*pool_->Draw());
  const ComputeTurn wait = Ask(0, 4);
  ASSERT_EQ(wait.kind, Kind::kWait);
  EXPECT_TRUE(wait.lacks_pages);
  EXPECT_GT(wait.wait_until, clock_.Now());
  EXPECT_LT(wait.wait_until, clock_.Now() + Seconds(0.1));
  taken.Reset();
  const ComputeTurn slice = Ask(0, 4);
  ASSERT_EQ(slice.kind, Kind::kSlice);
  EXPECT_EQ(slice.claim.count, 1) << "there is a page for one";
  const ComputeTurn busy = Ask(0, 4);
  EXPECT_EQ(busy.kind, Kind::kWait);
  EXPECT_GT(busy.wait_until, clock_.Now()) << "nobody asks all the time while it is computed";
}

TEST_F(ComputeLaneTest, WhileAPlanHoldsReadsGoOnAsSoonAsThereArePages) {
  Start(/*chunk_s=*/10e-6, /*pages=*/1);
  PageHandle taken = std::move(*pool_->Draw());
  ComputeTurn turn = Ask(0, 4);
  ASSERT_EQ(turn.kind, Kind::kWait);
  EXPECT_TRUE(turn.lacks_pages);
  EXPECT_TRUE(calls_.gets.empty());
  taken.Reset();
  const TimePoint made = Made(0);
  Pass(0.1);
  Ask(0, 4);
  EXPECT_EQ(Made(0), made);
  EXPECT_EQ(calls_.gets.size(), 1u);
}

TEST_F(ComputeLaneTest, WhatAPromptIsLateByIsWhatTheLanesCostEachOther) {
  Start(/*chunk_s=*/10e-3);
  Board& board = *boards_[0];
  ComputeBesideALoad(40e-3);
  clock_.Advance(Seconds(80e-3));
  compute_->Restored(board);
  EXPECT_EQ(lanes_[0].estimate().beside_s, 0) << "two prompts share the lanes";
  table_.Remove(*boards_[1]);
  compute_->Restored(board);
  EXPECT_GT(lanes_[0].estimate().beside_s, 0);
}

TEST_F(ComputeLaneTest, WhatOthersInItsStepsMakeItLateByIsNotTheLanesDoing) {
  Start(/*chunk_s=*/10e-3);
  table_.Remove(*boards_[1]);
  ComputeBesideALoad(40e-3);
  compute_->NextTurn(*boards_[0], {.chunks = 0, .share = 1, .alone = false});
  clock_.Advance(Seconds(80e-3));
  compute_->Restored(*boards_[0]);
  EXPECT_EQ(lanes_[0].estimate().beside_s, 0);
}

// A caller of libkvcake ends it when it has copied what came, and computed what follows.
TEST_F(ComputeLaneTest, WhatPassesBeforeItIsEndedIsNotTheLanesDoing) {
  Start(/*chunk_s=*/10e-3);
  table_.Remove(*boards_[1]);
  Board& board = *boards_[0];
  ComputeBesideALoad(40e-3);
  for (size_t i = 1; i < calls_.gets.size(); ++i) Deliver(calls_.gets[i]);
  for (int chunk = board.claims().first_missing(); chunk < kChunks; ++chunk) {
    if (board.claims().state(chunk) == ChunkState::kResident) continue;
    board.Adopt(chunk, pool_->Publish(std::move(*pool_->Draw()), board.key(chunk), {}));
  }
  ASSERT_TRUE(board.claims().done());
  clock_.Advance(Seconds(80e-3));
  compute_->Restored(board);
  EXPECT_EQ(lanes_[0].estimate().beside_s, 0);
}

TEST_F(ComputeLaneTest, WhatNoiseCanDoIsNotTheLanesDoing) {
  Start(/*chunk_s=*/10e-3);
  for (int i = 0; i < 32; ++i) cost_.Add(i * 128, 128, Seconds(i % 2 == 0 ? 9e-3 : 11e-3));
  table_.Remove(*boards_[1]);
  Board& board = *boards_[0];
  ComputeBesideALoad(40e-3);
  const double noise_s = cost_.fit().noise * board.planned_s();
  ASSERT_GT(noise_s, 0);
  clock_.Advance(Seconds(0.5 * noise_s - board.Lateness()));
  compute_->Restored(board);
  EXPECT_EQ(lanes_[0].estimate().beside_s, 0);
  clock_.Advance(Seconds(noise_s));
  compute_->Restored(board);
  EXPECT_GT(lanes_[0].estimate().beside_s, 0);
}

TEST_F(ComputeLaneTest, APromptThatIsRestoredSoonerThanPlannedLowersWhatTheyCost) {
  Start(/*chunk_s=*/10e-3);
  table_.Remove(*boards_[1]);
  lanes_[0].cost().AddBeside(10e-3, 10);
  const double before = lanes_[0].estimate().beside_s;
  ComputeBesideALoad(40e-3);
  compute_->Restored(*boards_[0]);
  EXPECT_LT(lanes_[0].estimate().beside_s, before);
}

TEST_F(ComputeLaneTest, OnlyAPromptThatMayHaveBothLanesToItselfTells) {
  Start(/*chunk_s=*/10e-6);
  for (const auto& board : boards_) table_.Remove(*board);
  lanes_[0].cost().AddBeside(10e-3, 10);
  const auto tells = [&](Policy policy, std::optional<int> forced_split, const auto& change) {
    RestoreRequest request = testing_util::Request(3, kChunks, policy);
    request.forced_split = forced_split;
    Board board(*context_, request, 3, 1);
    change(board);
    table_.Add(board);
    const double before = lanes_[0].estimate().beside_s;
    compute_->Restored(board);
    table_.Remove(board);
    return lanes_[0].estimate().beside_s != before;
  };
  const auto nothing = [](Board&) {};
  EXPECT_TRUE(tells(Policy::kCake, {}, nothing));
  EXPECT_FALSE(tells(Policy::kLoad, {}, nothing));
  EXPECT_FALSE(tells(Policy::kCake, 4, nothing));
  EXPECT_FALSE(tells(Policy::kCake, {}, [](Board& board) { board.set_share(0.5); }));
  EXPECT_FALSE(tells(Policy::kCake, {}, [&](Board& board) {
    board.peers().MayWait(context_->options.claims, clock_.Now(), 1, 1);
  })) << "another process made it later";
}

TEST_F(ComputeLaneTest, APromptThatIsLoadedAloneForgetsThem) {
  Start(/*chunk_s=*/10e-6);
  table_.Remove(*boards_[1]);
  lanes_[0].cost().AddBeside(10e-3, 10);
  const double before = lanes_[0].estimate().beside_s;
  ASSERT_EQ(Ask(0, 4).kind, Kind::kWait);
  compute_->Restored(*boards_[0]);
  EXPECT_LT(lanes_[0].estimate().beside_s, before);
  EXPECT_GT(lanes_[0].estimate().beside_s, 0);
}

}  // namespace
}  // namespace kvcake
