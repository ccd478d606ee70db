#include "cake/load_scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cake/fake_engine_testing.h"
#include "cake/held_tier_testing.h"
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

// A prompt of which a fast tier holds all but the front, and a slow one all.
class TwoTiersTest : public testing::Test {
 protected:
  TwoTiersTest() {
    lanes_.emplace_back(context_, fast_);
    lanes_.emplace_back(context_, slow_);
    Learn(kFast, 1e-3);
    Learn(kSlow, 2e-3);
    std::vector<bool> held(kChunks, true);
    board_.SetLoadable(kSlow, held);
    std::fill_n(held.begin(), kAlone, false);
    board_.SetLoadable(kFast, held);
    table_.Add(board_);
  }
  // Reads of no prompt that came one after the other, so that the rate is known.
  void Learn(int tier, double interval_s) {
    for (uint64_t number = 1000; number < 1040; ++number) {
      LaneRead read;
      read.start = clock_.Now();
      lanes_[tier].Start(number, std::move(read));
      clock_.Advance(Seconds(interval_s));
      lanes_[tier].End(number, {.status = {}, .bytes = kLayout.page_bytes()});
    }
  }
  // Has all reads of the tier come, or those alone that were cancelled.
  void Answer(int tier, bool cancelled_only) {
    std::vector<std::pair<uint64_t, bool>> reads;
    for (const auto& [number, read] : lanes_[tier].reads()) {
      if (read.cancelled || !cancelled_only) reads.emplace_back(number, read.cancelled);
    }
    for (const auto& [number, cancelled] : reads) {
      ReadResult result{.status = {}, .bytes = kLayout.page_bytes()};
      if (cancelled) result = {.status = Fail(ErrorCode::kCancelled, "cancelled"), .bytes = 0};
      if (!cancelled) clock_.Advance(Seconds(1e-3));
      loads_.EndRead(tier, number, std::move(result));
    }
  }

  static bool IsTakeOver(const std::string& reason) {
    return reason.find("instead of memory: it will be sooner") != std::string::npos;
  }

  static constexpr int kChunks = 40, kAlone = 4, kFast = 0, kSlow = 1;
  FakeClock clock_;
  ComputeCost cost_;
  std::unique_ptr<PagePool> pool_ =
      std::move(PagePool::Create(kLayout, 128 * kLayout.page_bytes()).value());
  const RestoreContext context_{*pool_, cost_, clock_, {}};
  testing_util::HeldTier fast_;
  MemoryTier slow_{{.layout = kLayout}};
  std::vector<LoadLane> lanes_;
  InFlightTable table_;
  TierCalls calls_;
  RestorePlanner planner_{context_, lanes_, table_};
  LoadScheduler loads_{context_, {lanes_, table_, planner_, calls_}};
  Board board_{context_, testing_util::Request(1, kChunks, Policy::kLoad), 1, 2};
};

TEST_F(TwoTiersTest, WhatOnlyTheSlowerOneHasIsReadThoughTheOtherTookTheRestFromIt) {
  for (int rounds = 0; !board_.claims().done(); ++rounds) {
    ASSERT_LT(rounds, 4 * kChunks) << "nothing is read any more";
    loads_.Pump();
    const bool both = !lanes_[kFast].reads().empty();
    if (both) clock_.Advance(Seconds(0.1));  // far more than the slow one is expected to take
    Answer(kFast, /*cancelled_only=*/false);
    Answer(kSlow, /*cancelled_only=*/both);
  }
  const RestoreReport report = board_.Report();
  EXPECT_GE(std::ranges::count_if(report.reasons, IsTakeOver), context_.options.failures_max);
  EXPECT_EQ(report.tokens_loaded.at("held"), (kChunks - kAlone) * 128);
  EXPECT_EQ(report.tokens_loaded.at("memory"), kAlone * 128);
  EXPECT_TRUE(board_.Trusts(kSlow)) << "to be slower is no failure";
}

}  // namespace
}  // namespace kvcake
