#include "cake/load_scheduler.h"

#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "cake/fake_engine_testing.h"
#include "store/memory_tier.h"

namespace kvcake {
namespace {

using testing_util::kLayout;

// Two prompts that may only load; the test answers the reads.
class LoadSchedulerTest : public testing::Test {
 protected:
  LoadSchedulerTest() {
    lanes_.emplace_back(context_, tier_);
    for (int document = 1; document <= 2; ++document) {
      boards_.push_back(std::make_unique<Board>(
          context_, testing_util::Request(document, kChunks, Policy::kLoad), document, 1));
      boards_.back()->SetLoadable(0, std::vector<bool>(kChunks, true));
      table_.Add(*boards_.back());
    }
  }
  // Has the oldest read in flight come, or fail.
  void Answer(bool ok) {
    loads_.Pump();
    ReadResult result{.status = {}, .bytes = kLayout.page_bytes()};
    if (!ok) result.status = Fail(ErrorCode::kCorrupt, "damaged");
    loads_.EndRead(0, lanes_[0].reads().begin()->first, std::move(result));
  }

  static constexpr int kChunks = 40;
  FakeClock clock_;
  ComputeCost cost_;
  std::unique_ptr<PagePool> pool_ =
      std::move(PagePool::Create(kLayout, 128 * kLayout.page_bytes()).value());
  const RestoreContext context_{*pool_, cost_, clock_, {}};
  MemoryTier tier_{{.layout = kLayout}};
  std::vector<LoadLane> lanes_;
  InFlightTable table_;
  TierCalls calls_;
  RestorePlanner planner_{context_, lanes_, table_};
  LoadScheduler loads_{context_, {lanes_, table_, planner_, calls_}};
  std::vector<std::unique_ptr<Board>> boards_;
};

TEST_F(LoadSchedulerTest, ReadsForTheLowestRankFirst) {
  boards_[1]->claims().Publish(boards_[1]->claims().ClaimLoad(1));  // it has less left
  loads_.Pump();
  ASSERT_FALSE(lanes_[0].reads().empty());
  for (const auto& [number, read] : lanes_[0].reads()) EXPECT_EQ(read.owner, boards_[1].get());
}

TEST_F(LoadSchedulerTest, TheTimelineSaysWhatBecameOfReads) {
  Answer(/*ok=*/false);
  Answer(/*ok=*/true);
  std::vector<Outcome> outcomes;
  for (const auto& board : boards_) {
    for (const TimelineEntry& entry : board->Report().timeline) outcomes.push_back(entry.outcome);
  }
  EXPECT_EQ(outcomes, (std::vector{Outcome::kFailed, Outcome::kPublished}));
  EXPECT_EQ(boards_[0]->Report().reasons.at(0), "load of chunk 39 from memory failed: damaged");
}

TEST_F(LoadSchedulerTest, AReadThatComesRestoresTrust) {
  const int most = context_.options.failures_max - 1;
  for (int i = 0; i < most; ++i) Answer(/*ok=*/false);
  Answer(/*ok=*/true);
  for (int i = 0; i < most; ++i) Answer(/*ok=*/false);
  EXPECT_TRUE(boards_[0]->Trusts(0)) << "so many in a row were not enough before, either";
  Answer(/*ok=*/true);
  for (int i = 0; i < most; ++i) Answer(/*ok=*/false);
  EXPECT_TRUE(boards_[0]->Trusts(0));
  Answer(/*ok=*/false);
  EXPECT_FALSE(boards_[0]->Trusts(0) && boards_[1]->Trusts(0));
}

}  // namespace
}  // namespace kvcake
