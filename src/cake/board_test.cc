#include "cake/board.h"

#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "cake/fake_engine_testing.h"

namespace kvcake {
namespace {

using testing_util::kLayout;

// A prompt of eight chunks and five tokens, opened at ten seconds; the test plays both lanes.
class BoardTest : public testing::Test {
 protected:
  static constexpr int kChunks = 8;

  BoardTest() {
    clock_.Advance(Seconds(10));
    board_ = std::make_unique<Board>(context_, testing_util::Request(1, kChunks, Policy::kCake),
                                     /*serial=*/1, /*tiers=*/1);
    PlanToEndIn(0);
  }
  static Plan PlanOf(double finish_s) {
    Plan plan;
    plan.sides.assign(kChunks, Side::kEither);
    plan.tiers.assign(kChunks, -1);
    plan.finish_s = finish_s;
    return plan;
  }
  void PlanToEndIn(double finish_s) {
    Plan plan = PlanOf(finish_s);
    LoadQueue loads(board_->claims(), plan, 1);
    board_->set_plan({.plan = std::move(plan), .loads = std::move(loads), .basis = {}});
  }
  // A slice of so many chunks is begun, and takes so long.
  void Begin(int chunks, double predicted_s, double took_s) {
    PageTable pages;
    for (int i = 0; i < chunks; ++i) pages.push_back(*pool_->Draw());
    std::vector<int> taken;
    const Claim claim = board_->ClaimSlice(std::move(pages), &taken);
    board_->BeginSlice({.claim = claim, .predicted_s = predicted_s});
    clock_.Advance(Seconds(took_s));
  }
  void Load(int chunk) {
    board_->claims().Publish(board_->claims().ClaimLoad(chunk));
    board_->Loaded(chunk, "disk", pool_->Publish(*pool_->Draw(), board_->key(chunk), {}));
  }

  FakeClock clock_;
  ComputeCost cost_;
  std::unique_ptr<PagePool> pool_ =
      std::move(PagePool::Create(kLayout, 16 * kLayout.page_bytes()).value());
  const RestoreContext context_{*pool_, cost_, clock_, {}};
  std::unique_ptr<Board> board_;
};

TEST_F(BoardTest, TheErrorOfSlicesIsTheMeanOfThoseThatWerePredictedAndComputedWhole) {
  Begin(1, /*predicted_s=*/2, /*took_s=*/2);
  board_->PublishSlice(1);
  Begin(1, /*predicted_s=*/3, /*took_s=*/2);
  board_->PublishSlice(1);
  Begin(1, /*predicted_s=*/0, /*took_s=*/2);
  board_->PublishSlice(1);
  Begin(2, /*predicted_s=*/8, /*took_s=*/1);
  board_->PublishSlice(1);
  const RestoreReport report = board_->Report();
  EXPECT_EQ(report.slices, 2);
  EXPECT_EQ(report.slice_error, 0.25);
}

TEST_F(BoardTest, WhatWasPredictedIsWhatTheFirstPlanThatKnewTheCostsSaid) {
  board_->NoteTurn(PlanOf(0));
  clock_.Advance(Seconds(1));
  board_->NoteTurn(PlanOf(2));
  clock_.Advance(Seconds(1));
  board_->NoteTurn(PlanOf(5));
  EXPECT_EQ(board_->Report().predicted_s, 3);
  EXPECT_EQ(board_->Progress().predicted_s, 3);
}

TEST_F(BoardTest, WhatAPromptIsLateByCountsFromThePlanThatBeganTheFirstSlice) {
  Begin(1, 1, 1);
  board_->PublishSlice(1);
  EXPECT_EQ(board_->planned_s(), 0) << "the costs were not known";
  PlanToEndIn(4);
  Begin(1, 1, 1);
  board_->PublishSlice(1);
  PlanToEndIn(9);
  Begin(1, 1, 1);
  EXPECT_EQ(board_->planned_s(), 5);
  clock_.Advance(Seconds(4));
  EXPECT_EQ(board_->Lateness(), 2);
}

TEST_F(BoardTest, ASliceThatIsGivenBackHasBegunNothing) {
  PlanToEndIn(4);
  Begin(1, 1, 1);
  board_->PublishSlice(0);
  EXPECT_EQ(board_->planned_s(), 0);
  clock_.Advance(Seconds(9));
  PlanToEndIn(4);
  Begin(2, 1, 1);
  board_->PublishSlice(1);
  EXPECT_EQ(board_->planned_s(), 14);
  Begin(1, 1, 1);
  board_->PublishSlice(0);
  EXPECT_EQ(board_->planned_s(), 14);
}

TEST_F(BoardTest, APromptIsNoLaterForBeingEndedLongAfterAllWasThere) {
  PlanToEndIn(4);
  Begin(1, 1, 1);
  board_->PublishSlice(1);
  for (int chunk = 1; chunk < kChunks; ++chunk) Load(chunk);
  EXPECT_EQ(board_->Lateness(), -3);
  clock_.Advance(Seconds(9));
  EXPECT_EQ(board_->Lateness(), -3);
}

TEST_F(BoardTest, TheTimelineIsInTokensAndInSecondsFromTheBeginning) {
  const TimePoint before = clock_.Now() - Seconds(3);  // another prompt's read, which it inherits
  clock_.Advance(Seconds(1));
  board_->NoteRead(6, "disk", clock_.Now(), Outcome::kFailed);
  Begin(2, 1, /*took_s=*/2);
  board_->PublishSlice(2);
  board_->NoteRead(7, "disk", before, Outcome::kPublished);
  const std::vector<TimelineEntry> timeline = board_->Report().timeline;
  ASSERT_EQ(timeline.size(), 3u);
  const auto check = [](const TimelineEntry& entry, const TimelineEntry& expected) {
    EXPECT_EQ(entry.lane, expected.lane);
    EXPECT_EQ(entry.first_token, expected.first_token);
    EXPECT_EQ(entry.tokens, expected.tokens);
    EXPECT_EQ(entry.start_s, expected.start_s);
    EXPECT_EQ(entry.end_s, expected.end_s);
    EXPECT_EQ(entry.outcome, expected.outcome);
  };
  check(timeline[0], {"disk", 6 * 128, 128, 1, 1, Outcome::kFailed});
  check(timeline[1], {"compute", 0, 2 * 128, 1, 3, Outcome::kPublished});
  check(timeline[2], {"disk", 7 * 128, 128, 0, 3, Outcome::kPublished});
}

TEST_F(BoardTest, TheLanesMeetAtTheFirstTokenThatWasLoaded) {
  EXPECT_EQ(board_->Report().meeting_token, kChunks * 128 + 5) << "none was";
  for (const auto& [chunk, first] : {std::pair(6, 6), std::pair(7, 6), std::pair(4, 4)}) {
    Load(chunk);
    EXPECT_EQ(board_->Report().meeting_token, first * 128);
  }
}

TEST_F(BoardTest, ProgressSaysHowFarBothLanesHaveCome) {
  Begin(2, 1, 1);
  board_->PublishSlice(2);
  Load(7);
  Load(6);
  board_->claims().ClaimLoad(4);
  board_->Adopt(5, pool_->Publish(*pool_->Draw(), board_->key(5), {}));
  board_->claims().MarkElsewhere(3);
  const RestoreProgress progress = board_->Progress();
  EXPECT_EQ(progress.prompt_tokens, kChunks * 128 + 5);
  EXPECT_EQ(progress.computed, 2 * 128);
  EXPECT_EQ(progress.loaded, 2 * 128);
  EXPECT_EQ(progress.reused, 128);
  EXPECT_EQ(progress.front, 2);
  EXPECT_EQ(progress.back, 5);
  EXPECT_EQ(progress.loading, 2);
}

TEST_F(BoardTest, WhenItCameFurtherAndWhenAllWasThereIsKnown) {
  for (int chunk = 0; chunk < kChunks; ++chunk) {
    clock_.Advance(Seconds(1));
    Load(chunk);
    EXPECT_EQ(board_->progressed(), clock_.Now());
  }
  EXPECT_EQ(board_->TakePages().size(), size_t{kChunks});
  EXPECT_EQ(board_->Report().restored_s, kChunks);
}

TEST_F(BoardTest, ATierIsTrustedUntilItHasFailedAsOftenAsItMay) {
  for (int i = 1; i < context_.options.failures_max; ++i) board_->NoteFailure(0);
  EXPECT_TRUE(board_->Trusts(0));
  board_->NoteFailure(0);
  EXPECT_FALSE(board_->Trusts(0));
}

}  // namespace
}  // namespace kvcake
