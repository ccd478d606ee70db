#include "cake/restore_planner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string_view>

#include "cake/fake_engine_testing.h"
#include "store/memory_tier.h"

namespace kvcake {
namespace {

using testing_util::kLayout;
using testing_util::Request;

// A link that takes as long for a chunk as compute does, and knows it.
class RestorePlannerTest : public testing::Test {
 protected:
  RestorePlannerTest() {
    for (int i = 0; i < 8; ++i) cost_.Add(i * 128, 128, Seconds(kChunkSeconds));
    AddLink(/*fixed_s=*/0, kChunkSeconds);
  }
  void AddLink(double fixed_s, double chunk_s) {
    lanes_.emplace_back(context_, tier_);
    const double bytes = static_cast<double>(kLayout.page_bytes());
    EXPECT_TRUE(lanes_.back().cost().FromJson({{"version", 1},
                                               {"fixed_s", fixed_s},
                                               {"bytes_per_s", bytes / chunk_s},
                                               {"read_bytes", bytes}}));
  }
  // Being restored, with all of its chunks in the tier.
  std::unique_ptr<Board> Open(int document, double rank) {
    return Open(Request(document, 40, Policy::kCake), rank);
  }
  std::unique_ptr<Board> Open(const RestoreRequest& request, double rank, bool stored = true) {
    auto board = std::make_unique<Board>(context_, request, ++serial_, /*tiers=*/2);
    board->SetLoadable(0, std::vector<bool>(40, stored));
    board->set_rank(rank);
    table_.Add(*board);
    return board;
  }
  // Half of it is document 1, half another.
  static RestoreRequest Branch() {
    std::vector<int32_t> tokens(40, 1);
    std::fill(tokens.begin() + 20, tokens.end(), 2);
    RestoreRequest request = Request(1, 40, Policy::kCake);
    request.keys = ChunkKeys(ChunkKey{}, tokens, 1);
    return request;
  }
  void Distrust(Board& board) {
    for (int i = 0; i < context_.options.failures_max; ++i) board.NoteFailure(0);
  }
  static void Load(Board& board, int first, int end) {
    for (int i = first; i < end; ++i) board.claims().Publish(board.claims().ClaimLoad(i));
  }
  double FinishSeconds(Board& board) { return planner_.MakePlanFor(board, 4).finish_s; }
  int Loads(Board& board) {
    const Plan plan = planner_.MakePlanFor(board, 4);
    return static_cast<int>(std::count(plan.sides.begin(), plan.sides.end(), Side::kLoad));
  }

  // When its plan need not be made again yet.
  TimePoint HeldUntil(const Board& board) const { return board.plan()->made + planner_.HoldTime(); }

  static constexpr double kChunkSeconds = 10e-3;
  FakeClock clock_;
  ComputeCost cost_;
  std::unique_ptr<PagePool> pool_ =
      std::move(PagePool::Create(kLayout, 4 * kLayout.page_bytes()).value());
  const RestoreContext context_{*pool_, cost_, clock_, {}};
  MemoryTier tier_{{.layout = kLayout}};
  std::vector<LoadLane> lanes_;
  InFlightTable table_;
  RestorePlanner planner_{context_, lanes_, table_};
  uint64_t serial_ = 0;
};

TEST_F(RestorePlannerTest, OneAloneLoadsHalfOfWhatTakesAsLongToCompute) {
  const auto board = Open(1, 0);
  EXPECT_NEAR(Loads(*board), 20, 1);
  EXPECT_EQ(board->loads_left(0), Loads(*board));
}

TEST_F(RestorePlannerTest, TheLinkIsFirstOfThoseBefore) {
  const auto first = Open(1, 0), second = Open(2, 1);
  EXPECT_NEAR(Loads(*first), 20, 1);
  EXPECT_NEAR(Loads(*second), 10, 1) << "20 reads come before its own";
  EXPECT_NEAR(Loads(*first), 20, 1) << "and none before the first's";
  Load(*first, 0, 40);
  EXPECT_NEAR(Loads(*second), 20, 1) << "others have brought what was left to the first";
}

TEST_F(RestorePlannerTest, APlanHoldsForATimeThatGrowsWithTheChunksOfAll) {
  const auto first = Open(1, 0);
  EXPECT_FALSE(planner_.Holds(*first)) << "there is none";
  const Seconds alone = planner_.HoldTime();
  const auto second = Open(2, 1);
  EXPECT_GT(alone.count(), 0);
  EXPECT_EQ(planner_.HoldTime(), 2 * alone);
  planner_.MakePlanFor(*first, 4);
  EXPECT_TRUE(planner_.Holds(*first));
  EXPECT_FALSE(planner_.Holds(*second));
  clock_.Advance(0.9 * planner_.HoldTime());
  EXPECT_TRUE(planner_.Holds(*first));
  clock_.AdvanceTo(HeldUntil(*first));
  EXPECT_FALSE(planner_.Holds(*first));
  table_.Remove(*second);
  EXPECT_EQ(planner_.HoldTime(), alone);
}

TEST_F(RestorePlannerTest, APlanHoldsNoLongerThanWhatItRestsOn) {
  const auto board = Open(1, 0), other = Open(2, 1);
  const auto changed = [&](const auto& change) {
    planner_.MakePlanFor(*board, 4);
    EXPECT_TRUE(planner_.Holds(*board));
    change();
    return !planner_.Holds(*board);
  };
  EXPECT_FALSE(changed([&] { board->claims().Publish(board->claims().ClaimLoad(39)); }))
      << "a chunk came, as foreseen";
  EXPECT_TRUE(changed([&] { board->claims().Fail(board->claims().ClaimLoad(38), 0); }));
  EXPECT_TRUE(changed([&] { board->set_share(0.5); }));
  EXPECT_TRUE(changed([&] { board->set_share(0); }));
  EXPECT_FALSE(changed([&] { other->set_share(0); })) << "another document's";
  EXPECT_TRUE(changed([&] { Distrust(*board); }));
  EXPECT_TRUE(changed([&] { lanes_[0].cost() = TierCost(); })) << "its speed is unknown";
}

TEST_F(RestorePlannerTest, APlanThatKnewNoCostsEndsWhenTheyAreKnown) {
  const auto board = Open(1, 0);
  ComputeCost cost;
  const RestoreContext context{*pool_, cost, clock_, {}};
  RestorePlanner planner{context, lanes_, table_};
  planner.MakePlanFor(*board, 4);
  EXPECT_TRUE(planner.Holds(*board));
  for (int i = 0; i < 8; ++i) cost.Add(i * 128, 128, Seconds(kChunkSeconds));
  EXPECT_FALSE(planner.Holds(*board));
}

TEST_F(RestorePlannerTest, RanksByWhatIsLeftToLoad) {
  AddLink(/*fixed_s=*/0, 2 * kChunkSeconds);  // what the quickest takes counts
  const auto first = Open(1, 0), second = Open(2, 0);
  Load(*second, 20, 40);
  first->claims().ClaimLoad(39);  // is still to come
  planner_.UpdateRanks();
  EXPECT_NEAR(first->rank() - second->rank(), 20 * kChunkSeconds, 1e-9);
  EXPECT_EQ(*table_.ranked().begin(), second.get());
  Distrust(*first);
  planner_.UpdateRank(*first);
  EXPECT_NEAR(second->rank() - first->rank(), 19 * kChunkSeconds, 1e-9);
}

TEST_F(RestorePlannerTest, RanksAgeAsPlansDo) {
  const auto first = Open(1, 0), second = Open(2, 0);
  planner_.UpdateRanks();
  const double rank = first->rank();
  Load(*first, 20, 40);
  clock_.Advance(0.9 * planner_.HoldTime());
  planner_.UpdateRanks();
  EXPECT_EQ(first->rank(), rank) << "what it costs to rank all is spent now and then";
  clock_.Advance(0.2 * planner_.HoldTime());
  planner_.UpdateRanks();
  EXPECT_NEAR(first->rank(), rank - 20 * kChunkSeconds, 1e-9);
}

TEST_F(RestorePlannerTest, RanksAnewWhenAPromptComesOrGoes) {
  const auto first = Open(1, 0), second = Open(2, 0);
  planner_.UpdateRanks();
  const double rank = first->rank();
  Load(*first, 20, 40);
  const auto third = Open(3, 0);
  planner_.UpdateRanks();
  EXPECT_NEAR(first->rank(), rank - 20 * kChunkSeconds, 1e-9);
}

TEST_F(RestorePlannerTest, RequestsOnOneDocumentShareItsLoads) {
  const auto first = Open(1, 0), second = Open(1, 1);
  const int loads = Loads(*first);
  EXPECT_EQ(Loads(*second), loads);
  const auto branch = Open(Branch(), 2);
  EXPECT_LT(Loads(*branch), loads) << "it has loads of its own";
}

TEST_F(RestorePlannerTest, WhereAllLoadAtOnceEachDocumentHasItsShareOfTheLink) {
  const RestoreContext context{*pool_, cost_, clock_, {.load_order = LoadOrder::kFair}};
  RestorePlanner planner{context, lanes_, table_};
  const auto first = Open(1, 0), same = Open(1, 1);
  const auto loads = [&] {
    planner.UpdateRanks();
    const Plan plan = planner.MakePlanFor(*first, 4);
    return std::count(plan.sides.begin(), plan.sides.end(), Side::kLoad);
  };
  EXPECT_NEAR(loads(), 20, 1);
  const auto computed = Open(Request(3, 40, Policy::kCompute), 3);
  EXPECT_NEAR(loads(), 20, 1);
  const auto second = Open(2, 2);
  EXPECT_NEAR(loads(), 13, 1) << "each load takes twice as long";
}

// By the engine, or by another prompt on the same document that the engine computes.
TEST_F(RestorePlannerTest, WhatNobodyComputesIsLoaded) {
  const auto board = Open(1, 0), branch = Open(Branch(), 1);
  board->set_share(0);
  EXPECT_EQ(Loads(*board), 40) << "the other one's are others";
  const auto same = Open(1, 2);
  same->set_share(0);
  EXPECT_EQ(Loads(*board), 40);
  ASSERT_TRUE(planner_.Holds(*board));
  same->set_share(1);
  EXPECT_FALSE(planner_.Holds(*board));
  EXPECT_NEAR(Loads(*board), 20, 1);
}

TEST_F(RestorePlannerTest, ASliceTakesWholeStepsHoweverSmallItsShareIs) {
  const auto board = Open(1, 0);
  board->set_share(0.5);
  EXPECT_NEAR(Loads(*board), 27, 1) << "two chunks in the time of four";
  board->set_share(0.1);
  EXPECT_NEAR(Loads(*board), 36, 1) << "one in the time of ten";
}

TEST_F(RestorePlannerTest, APlanLooksAtWhatIsThereAndUnderWay) {
  const auto board = Open(Request(1, 40, Policy::kCake), 0, /*stored=*/false);
  EXPECT_EQ(planner_.MakePlanFor(*board, 8).slice_chunks, 4) << "a slice at most";
  board->claims().MarkElsewhere(0);
  EXPECT_EQ(planner_.MakePlanFor(*board, 4).slice_chunks, 0) << "another prompt computes it";
  const auto read = [&](uint64_t number, Board& other) {
    lanes_[0].Start(number, {.owner = &other,
                             .claim = {.first = 0, .count = 1},
                             .key = other.key(0),
                             .page = std::move(*pool_->Draw()),
                             .start = clock_.Now(),
                             .id = {}});
  };
  const auto other = Open(4, 3);
  read(1, *other);
  const std::string_view reason = planner_.MakePlanFor(*board, 4).reason;
  EXPECT_EQ(reason, "waiting for a slice of another request") << "the read is another document's";
  read(2, *board);
  lanes_[0].Cancel(2);
  EXPECT_EQ(planner_.MakePlanFor(*board, 4).slice_chunks, 0) << "that was given up";
  for (const uint64_t number : {1, 2}) lanes_[0].End(number, {.status = {}});
  const auto distrusts = Open(2, 1);
  Distrust(*distrusts);
  EXPECT_EQ(Loads(*distrusts), 0);
  const auto published = Open(Request(3, 40, Policy::kPublished), 2);
  EXPECT_EQ(FinishSeconds(*published), 0) << "nothing is predicted";
}

// Somebody must make logits: the last token is computed again where its chunk was loaded.
TEST_F(RestorePlannerTest, APromptThatEndsWithAChunkHasOneTokenMoreToCompute) {
  RestoreRequest request = Request(1, 40, Policy::kCake);
  request.prompt_tokens = 40 * request.chunk_tokens;
  const auto exact = Open(request, 0);
  EXPECT_NEAR(planner_.Bound(*exact, {}), planner_.Bound(*exact, Seconds(0)) + kChunkSeconds / 128,
              1e-5);
}

TEST_F(RestorePlannerTest, SlicesOfOthersComeFirst) {
  const auto board = Open(Request(1, 40, Policy::kCake), 0, /*stored=*/false);
  const double alone_s = FinishSeconds(*board);
  EXPECT_NEAR(alone_s, 0.4, 0.01);
  const auto second = Open(2, 1), third = Open(3, 1);
  const auto begin = [&](Board& other, double predicted_s) {
    planner_.MakePlanFor(other, 4);
    std::vector<int> taken;
    const Claim claim = other.ClaimSlice(PageTable(1), &taken);
    other.BeginSlice({.claim = claim, .predicted_s = predicted_s});
  };
  begin(*second, 0.2);
  begin(*third, 0.1);
  EXPECT_NEAR(FinishSeconds(*board), alone_s + 0.2, 1e-6);
  clock_.Advance(Seconds(0.15));
  EXPECT_NEAR(FinishSeconds(*board), alone_s + 0.05, 1e-6);
  clock_.Advance(Seconds(0.3));
  EXPECT_NEAR(FinishSeconds(*board), alone_s + 0.35, 1e-6) << "one that is late stays so for long";
  second->DropSlice();
  third->DropSlice();
  EXPECT_NEAR(FinishSeconds(*board), alone_s, 1e-6);
}

TEST_F(RestorePlannerTest, NeedsWhatOnlyComputeCanMake) {
  RestoreRequest request = Request(1, 40, Policy::kCake);
  const auto stored = Open(request, 0);
  const auto fresh = Open(request, 0, /*stored=*/false);
  request.forced_split = 3;
  const auto split = Open(request, 0);
  const auto computed = Open(Request(1, 40, Policy::kCompute), 0);
  const auto loaded = Open(Request(1, 40, Policy::kLoad), 0);
  clock_.Advance(Seconds(1));
  EXPECT_EQ(planner_.Need(*stored).fresh_chunks, 0);
  EXPECT_EQ(planner_.Need(*stored).idle, Seconds(1));
  EXPECT_EQ(planner_.Need(*split).fresh_chunks, 3);
  EXPECT_EQ(planner_.Need(*computed).fresh_chunks, 40);
  EXPECT_EQ(planner_.Need(*loaded).fresh_chunks, 0);
  EXPECT_EQ(planner_.Need(*loaded).idle, Seconds(0)) << "compute may not help";
  fresh->claims().ClaimLoad(30);
  EXPECT_EQ(planner_.Need(*fresh).fresh_chunks, 30);
  EXPECT_NEAR(planner_.Need(*fresh).fresh_s, 30 * kChunkSeconds, 1e-3);
  fresh->BeginLook(0);
  fresh->AwaitLooksFor(Seconds(2));
  EXPECT_EQ(planner_.Need(*fresh).fresh_chunks, 0) << "nobody knows yet";
  EXPECT_EQ(planner_.Need(*fresh).idle, Seconds(0));
  Distrust(*stored);
  EXPECT_EQ(planner_.Need(*stored).fresh_chunks, 40) << "no tier may be asked";
}

TEST_F(RestorePlannerTest, NobodyWaitsToHearFromATierThatIsGivenUp) {
  AddLink(/*fixed_s=*/0, kChunkSeconds);
  const auto board = Open(1, 0);
  EXPECT_NEAR(planner_.LookWait(*board).count(), 0.2 * kChunkSeconds, 1e-6)
      << "a part of a chunk's time";
  board->AwaitLooksFor(Seconds(100));
  board->BeginLook(1);
  lanes_[1].BeginLook();
  EXPECT_TRUE(planner_.AwaitsLooks(*board));
  clock_.Advance(Seconds(31));
  lanes_[1].CheckStall();
  EXPECT_FALSE(planner_.AwaitsLooks(*board));
  board->BeginLook(0);
  EXPECT_TRUE(planner_.AwaitsLooks(*board));
}

TEST_F(RestorePlannerTest, TheBoundIsThatOfAllTheLinksAsTheyAre) {
  const auto board = Open(1, 0);
  const double bound_s = planner_.Bound(*board, Seconds(2));
  EXPECT_NEAR(bound_s, 20 * kChunkSeconds + 2, kChunkSeconds);
  lanes_.clear();
  AddLink(/*fixed_s=*/0.1, kChunkSeconds);
  EXPECT_NEAR(planner_.Bound(*board, Seconds(2)), bound_s + 0.05, kChunkSeconds);
  ComputeCost cost;
  const RestoreContext context{*pool_, cost, clock_, {}};
  EXPECT_EQ(RestorePlanner(context, lanes_, table_).Bound(*board, Seconds(2)), 0)
      << "nobody knows what computing would have taken";
}

}  // namespace
}  // namespace kvcake
