#include "cake/load_lane.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>

#include "cake/fake_engine_testing.h"

namespace kvcake {
namespace {

using testing_util::kLayout;

class LimitedTier : public Tier {
 public:
  std::string_view name() const override { return "limited"; }
  int max_reads_in_flight() const override { return reads_max; }
  uint64_t max_read_bytes_in_flight() const override { return bytes_max; }
  std::vector<bool> Residency(std::span<const ChunkKey> keys) override {
    return std::vector<bool>(keys.size());
  }
  ReadId Get(ReadRequest) override { return 0; }
  void Cancel(ReadId) override {}
  Status Put(const ChunkWrite&) override { return {}; }
  Status Evict(const ChunkKey&) override { return {}; }
  TierStats Stats() const override { return {}; }

  int reads_max = 8;
  uint64_t bytes_max = 8 * kLayout.page_bytes();
};

class LoadLaneTest : public testing::Test {
 protected:
  void Start(uint64_t number) {
    lane_.Start(number, {.owner = &board_,
                         .claim = {.first = static_cast<int>(number), .count = 1},
                         .key = {},
                         .page = {},
                         .start = clock_.Now(),
                         .id = {}});
  }
  // Reads that a lane of the tier as it is now takes.
  int Room() {
    LoadLane lane(context_, tier_);
    int reads = 0;
    for (; lane.HasRoom(); ++reads) lane.Start(reads, {});
    return reads;
  }
  // Reads that came one after the other, so that the rate is known.
  void Learn(double interval_s) {
    for (uint64_t number = 100; number < 120; ++number) {
      Start(number);
      Start(number + 100);
      for (uint64_t read : {number, number + 100}) {
        clock_.Advance(Seconds(interval_s));
        lane_.End(read, {.status = {}, .bytes = kLayout.page_bytes()});
      }
    }
    ASSERT_TRUE(lane_.estimate().known);
  }

  FakeClock clock_;
  LimitedTier tier_;
  ComputeCost cost_;
  std::unique_ptr<PagePool> pool_ =
      std::move(PagePool::Create(kLayout, 4 * kLayout.page_bytes()).value());
  const RestoreContext context_{*pool_, cost_, clock_, {}};
  Board board_{context_, RestoreRequest{}, 1, 1};
  LoadLane lane_{context_, tier_};
};

TEST_F(LoadLaneTest, TakesAsManyReadsAsTheSmallestLimitAllows) {
  for (uint64_t number = 0; number < 4; ++number) {
    EXPECT_TRUE(lane_.HasRoom());
    Start(number);
  }
  EXPECT_FALSE(lane_.HasRoom()) << "Options::reads_ahead";
}

TEST_F(LoadLaneTest, TakesNoMoreThanTheTierDoes) {
  tier_.reads_max = 2;
  EXPECT_EQ(Room(), 2);
  tier_.reads_max = 8;
  tier_.bytes_max = 4 * kLayout.page_bytes() - 1;
  EXPECT_EQ(Room(), 3) << "its bytes";
  tier_.bytes_max = kLayout.page_bytes() - 1;
  EXPECT_EQ(Room(), 0);
  EXPECT_FALSE(LoadLane(context_, tier_).Usable()) << "not even one chunk";
}

TEST_F(LoadLaneTest, ACancelledReadIsToldToTheTierOnceItsIdIsKnown) {
  Start(1);
  Start(2);
  EXPECT_FALSE(lane_.Cancel(1)) << "Get has not returned";
  EXPECT_TRUE(lane_.Issued(1, 71)) << "so who called it tells the tier";
  EXPECT_FALSE(lane_.Issued(2, 72));
  EXPECT_EQ(lane_.Cancel(2), 72u);
  EXPECT_FALSE(lane_.Cancel(2)) << "once";
  EXPECT_EQ(lane_.reads().at(2).owner, nullptr);
  EXPECT_FALSE(lane_.Issued(3, 73)) << "it has ended already";
}

TEST_F(LoadLaneTest, EtasFollowEachOtherInOrderOfIssue) {
  Learn(0.5);
  Start(2);
  Start(1);  // numbers tell the order, not the calls
  lane_.UpdateEtas();
  const double first = lane_.reads().at(1).eta_s, second = lane_.reads().at(2).eta_s;
  EXPECT_GT(first, 0);
  EXPECT_NEAR(second - first, lane_.interval_s(), 1e-9);
  EXPECT_NEAR(lane_.View().drain_s, second, 1e-9);
}

TEST_F(LoadLaneTest, ASilentTierIsGivenUpAndAskedAgainLater) {
  Start(1);
  clock_.Advance(Seconds(30));
  EXPECT_FALSE(lane_.CheckStall()) << "not longer than stall_timeout";
  clock_.Advance(Seconds(1));
  EXPECT_TRUE(lane_.CheckStall());
  EXPECT_TRUE(lane_.stalled());
  EXPECT_FALSE(lane_.Usable());
  EXPECT_FALSE(lane_.CheckStall()) << "said once";
  lane_.Cancel(1);
  clock_.Advance(Seconds(2));
  EXPECT_FALSE(lane_.CheckStall());
  EXPECT_FALSE(lane_.stalled()) << "a thirtieth of its silence has passed";
}

TEST_F(LoadLaneTest, CancelledReadsThatNeverComeBackAreAStallWhenTheyLeaveNoRoom) {
  for (uint64_t number = 0; number < 3; ++number) Start(number);
  for (uint64_t number = 0; number < 3; ++number) lane_.Cancel(number);
  clock_.Advance(Seconds(31));
  EXPECT_FALSE(lane_.CheckStall()) << "another read may be started";
  Start(3);
  lane_.Cancel(3);
  clock_.Advance(Seconds(31));
  EXPECT_TRUE(lane_.CheckStall());
}

// Beside a slice a chunk that is decoded makes all end later by its share of the cores.
TEST_F(LoadLaneTest, DecodingIsPricedBesideSlices) {
  Learn(1e-3);
  EXPECT_EQ(lane_.View().beside_s, 0);
  Start(1);
  lane_.End(1, {.status = {}, .bytes = kLayout.page_bytes(), .core_s = 6e-3});
  EXPECT_DOUBLE_EQ(lane_.View().beside_s, 6e-3 / context_.options.cores);
  Start(2);
  lane_.End(2, {.status = Fail(ErrorCode::kIo, "injected"), .core_s = 1});
  EXPECT_DOUBLE_EQ(lane_.View().beside_s, 6e-3 / context_.options.cores) << "nothing came";
}

TEST_F(LoadLaneTest, WhatComesEndsAStall) {
  Start(1);
  clock_.Advance(Seconds(31));
  ASSERT_TRUE(lane_.CheckStall());
  lane_.Cancel(1);
  lane_.End(1, {.status = {}, .bytes = kLayout.page_bytes()});
  EXPECT_TRUE(lane_.Usable());
}

TEST_F(LoadLaneTest, ATierThatDoesNotSayWhatItHoldsIsGivenUpUntilItDoes) {
  lane_.BeginLook();
  clock_.Advance(Seconds(31));
  EXPECT_FALSE(lane_.CheckStall()) << "reads in flight are the tier's to answer";
  EXPECT_TRUE(lane_.stalled());
  clock_.Advance(Seconds(100));
  EXPECT_FALSE(lane_.CheckStall());
  EXPECT_TRUE(lane_.stalled()) << "while the question is open";
  lane_.NoteAnswer();
  EXPECT_FALSE(lane_.stalled());
}

TEST_F(LoadLaneTest, ALinkThatWasNotMeasuredForLongWantsOneRead) {
  EXPECT_TRUE(lane_.WantsProbe());
  Learn(0.5);
  EXPECT_FALSE(lane_.WantsProbe());
  clock_.Advance(Seconds(61));
  EXPECT_TRUE(lane_.WantsProbe());
  Start(1);
  EXPECT_FALSE(lane_.WantsProbe()) << "it has one";
}

TEST_F(LoadLaneTest, TheViewSaysHowLongTheFirstReadHasBeenUnderWay) {
  EXPECT_TRUE(std::isinf(lane_.View().waited_s));
  Start(1);
  clock_.Advance(Seconds(3));
  EXPECT_DOUBLE_EQ(lane_.View().waited_s, 3);
}

}  // namespace
}  // namespace kvcake
