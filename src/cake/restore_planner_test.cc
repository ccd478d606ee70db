#include "cake/restore_planner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

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

TEST_F(RestorePlannerTest, RequestsOnOneDocumentShareItsLoads) {
  const auto first = Open(1, 0), second = Open(1, 1);
  EXPECT_EQ(Loads(*first), Loads(*second));
}

}  // namespace
}  // namespace kvcake
