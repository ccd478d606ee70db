#include "cake/restore_planner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

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
    lanes_.emplace_back(context_, tier_);
    const double bytes = static_cast<double>(kLayout.page_bytes());
    EXPECT_TRUE(lanes_[0].cost().FromJson({{"version", 1},
                                           {"fixed_s", 0},
                                           {"bytes_per_s", bytes / kChunkSeconds},
                                           {"read_bytes", bytes}}));
  }
  // Being restored, with all of its chunks in the tier.
  std::unique_ptr<Board> Open(int document, double rank) {
    auto board = std::make_unique<Board>(context_, Request(document, 40, Policy::kCake), ++serial_,
                                         /*tiers=*/1);
    board->SetLoadable(0, std::vector<bool>(40, true));
    board->set_rank(rank);
    table_.Add(*board);
    return board;
  }
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
  EXPECT_TRUE(changed([&] {
    for (int i = 0; i < context_.options.failures_max; ++i) board->NoteFailure(0);
  }));
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
  const auto first = Open(1, 0), second = Open(2, 0);
  for (int i = 20; i < 40; ++i) second->claims().Publish(second->claims().ClaimLoad(i));
  first->claims().ClaimLoad(39);  // is still to come
  planner_.UpdateRanks();
  EXPECT_NEAR(first->rank() - second->rank(), 20 * kChunkSeconds, 1e-9);
  EXPECT_EQ(*table_.ranked().begin(), second.get());
}

TEST_F(RestorePlannerTest, RanksAgeAsPlansDo) {
  const auto first = Open(1, 0), second = Open(2, 0);
  planner_.UpdateRanks();
  const double rank = first->rank();
  for (int i = 20; i < 40; ++i) first->claims().Publish(first->claims().ClaimLoad(i));
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
  for (int i = 20; i < 40; ++i) first->claims().Publish(first->claims().ClaimLoad(i));
  const auto third = Open(3, 0);
  planner_.UpdateRanks();
  EXPECT_NEAR(first->rank(), rank - 20 * kChunkSeconds, 1e-9);
}

TEST_F(RestorePlannerTest, RequestsOnOneDocumentShareItsLoads) {
  const auto first = Open(1, 0), second = Open(1, 1);
  EXPECT_EQ(Loads(*first), Loads(*second));
}

}  // namespace
}  // namespace kvcake
