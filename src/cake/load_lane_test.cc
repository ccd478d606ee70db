#include "cake/load_lane.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>

#include "base/log_testing.h"
#include "cake/fake_engine_testing.h"

namespace kvcake {
namespace {

using testing::AllOf;
using testing::HasSubstr;
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
  bool StallsAfter(Seconds wait) {
    clock_.Advance(wait);
    lane_.CheckStall();
    return lane_.stalled();
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

// One read hangs, as of a file on a server that has gone, and compute has taken its chunk.
TEST_F(LoadLaneTest, AReadThatOthersHaveOvertakenCostsItsPlaceAlone) {
  Learn(1e-3);
  lane_.UpdateEtas();
  const double drain_s = lane_.View().drain_s;
  Start(500);
  Start(501);
  lane_.Issued(500, 1);
  lane_.Cancel(500);
  clock_.Advance(Seconds(1e-3));
  lane_.End(501, {.status = {}, .bytes = kLayout.page_bytes()});
  clock_.Advance(Seconds(120));
  EXPECT_FALSE(lane_.CheckStall());
  lane_.UpdateEtas();
  EXPECT_NEAR(lane_.View().drain_s, drain_s, 1e-3);
  EXPECT_TRUE(std::isinf(lane_.View().waited_s));
  EXPECT_TRUE(lane_.WantsProbe());
  int room = 0;
  for (uint64_t number = 600; lane_.HasRoom(); ++number, ++room) Start(number);
  EXPECT_EQ(room, 4) << "Options::reads_ahead, as if it were not there";
}

TEST_F(LoadLaneTest, WhetherACancelledReadIsLostAnotherWillTell) {
  Learn(1e-3);
  Start(500);
  lane_.Issued(500, 1);
  lane_.Cancel(500);
  clock_.Advance(Seconds(1));
  lane_.UpdateEtas();
  EXPECT_GT(lane_.View().drain_s, 0.9) << "the link may be that slow";
  EXPECT_FALSE(lane_.WantsProbe());
  clock_.Advance(Seconds(1.5));
  EXPECT_TRUE(lane_.WantsProbe());
  Start(501);
  EXPECT_FALSE(lane_.WantsProbe());
  clock_.Advance(Seconds(1e-3));
  lane_.End(501, {.status = {}, .bytes = kLayout.page_bytes()});
  clock_.Advance(Seconds(100));
  lane_.UpdateEtas();
  EXPECT_LT(lane_.View().drain_s, 0.1);
}

TEST_F(LoadLaneTest, LostReadsKeepTheTiersPlaces) {
  tier_.reads_max = 5;
  LoadLane lane(context_, tier_);
  for (uint64_t number = 0; number < 3; ++number) {
    lane.Start(number, {});
    lane.Cancel(number);
  }
  lane.Start(3, {});
  lane.End(3, {.status = {}, .bytes = kLayout.page_bytes()});
  int room = 0;
  for (uint64_t number = 10; lane.HasRoom(); ++number, ++room) lane.Start(number, {});
  EXPECT_EQ(room, 2);
}

TEST_F(LoadLaneTest, AReadThatIsLostIsToldOfOnce) {
  const testing_util::CapturedLog log;
  Start(1);
  Start(2);
  lane_.Cancel(1);
  lane_.End(2, {.status = {}, .bytes = kLayout.page_bytes()});
  lane_.CheckStall();
  EXPECT_EQ(log.str(), "");
  clock_.Advance(Seconds(31));
  lane_.CheckStall();
  EXPECT_THAT(log.str(), HasSubstr("a read from limited that others have overtaken"));
  const std::string told = log.str();
  clock_.Advance(Seconds(31));
  lane_.CheckStall();
  EXPECT_EQ(log.str(), told);
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
  EXPECT_FALSE(StallsAfter(Seconds(30)));
  EXPECT_TRUE(StallsAfter(Seconds(1)));
  lane_.NoteAnswer();
  EXPECT_FALSE(lane_.stalled());
}

TEST_F(LoadLaneTest, ALookThatNeverEndsCostsOneWait) {
  lane_.BeginLook();
  ASSERT_TRUE(StallsAfter(Seconds(31)));
  EXPECT_FALSE(StallsAfter(Seconds(1.1))) << "it is asked again after a thirtieth of its silence";
  EXPECT_FALSE(StallsAfter(Seconds(1000))) << "nothing more is expected of that look";
  lane_.BeginLook();
  lane_.EndLook();
  EXPECT_FALSE(StallsAfter(Seconds(31))) << "what is refused is not under way";
  lane_.BeginLook();
  EXPECT_FALSE(StallsAfter(Seconds(30)));
  EXPECT_TRUE(StallsAfter(Seconds(1))) << "of another one an answer is expected";
  EXPECT_FALSE(StallsAfter(Seconds(1.1)));
  lane_.NoteAnswer();
  lane_.EndLook();
  lane_.EndLook();
  lane_.BeginLook();
  EXPECT_TRUE(StallsAfter(Seconds(31)));
}

TEST_F(LoadLaneTest, ATierThatIsReadFromAnswersThoughALookDoesNot) {
  lane_.BeginLook();
  EXPECT_FALSE(StallsAfter(Seconds(20)));
  Start(1);
  lane_.End(1, {.status = {}, .bytes = kLayout.page_bytes()});
  EXPECT_FALSE(StallsAfter(Seconds(30)));
  EXPECT_TRUE(StallsAfter(Seconds(1)));
}

// Their chunks are given back, where a look alone would leave them to a tier that is silent.
TEST_F(LoadLaneTest, ReadsThatAreOverdueBesideALookAreCancelled) {
  lane_.BeginLook();
  Start(1);
  clock_.Advance(Seconds(31));
  EXPECT_TRUE(lane_.CheckStall());
}

TEST_F(LoadLaneTest, SaysThatATierIsGivenUpAndThatItAnswersAgain) {
  const testing_util::CapturedLog log;
  Start(1);
  EXPECT_TRUE(StallsAfter(Seconds(31)));
  EXPECT_THAT(log.str(), AllOf(HasSubstr("limited"), HasSubstr("31 s")));
  const std::string said = log.str();
  lane_.Cancel(1);
  EXPECT_FALSE(StallsAfter(Seconds(100)));
  EXPECT_EQ(log.str(), said) << "it is asked again, and has not answered";
  Start(2);
  EXPECT_TRUE(StallsAfter(Seconds(31)));
  EXPECT_EQ(log.str(), said) << "once";
  lane_.End(2, {.status = {}, .bytes = kLayout.page_bytes()});
  EXPECT_THAT(log.str(), HasSubstr("again"));
  const std::string answered = log.str();
  lane_.End(1, {.status = {}, .bytes = kLayout.page_bytes()});
  EXPECT_EQ(log.str(), answered);
}

TEST_F(LoadLaneTest, ATierThatFlickersIsLoggedOnceAMinute) {
  const testing_util::CapturedLog log;
  const auto flicker = [&](uint64_t number) {
    Start(number);
    EXPECT_TRUE(StallsAfter(Seconds(31)));
    lane_.Cancel(number);
    lane_.End(number, {.status = {}, .bytes = kLayout.page_bytes()});
    EXPECT_FALSE(lane_.stalled());
  };
  flicker(1);
  const std::string said = log.str();
  EXPECT_THAT(said, AllOf(HasSubstr("nothing has come"), HasSubstr("answers again")));
  flicker(2);
  EXPECT_EQ(log.str(), said);
  flicker(3);
  EXPECT_EQ(log.str().size(), 2 * said.size());
}

// Nothing would ever come over a link whose chunks take longer than the time-out.
TEST_F(LoadLaneTest, ATierIsGivenAsLongAsItsChunksTake) {
  Learn(/*interval_s=*/10);
  Start(1);
  EXPECT_FALSE(StallsAfter(Seconds(60)));
  EXPECT_TRUE(StallsAfter(Seconds(60)));
}

TEST_F(LoadLaneTest, ACancelledReadThatComesIsUnderWayNoMore) {
  Start(1);
  Start(2);
  lane_.Cancel(1);
  EXPECT_EQ(lane_.cost().in_flight(), 1);
  lane_.End(1, {.status = {}, .bytes = kLayout.page_bytes()});
  EXPECT_EQ(lane_.cost().in_flight(), 1);
  lane_.End(2, {.status = {}, .bytes = kLayout.page_bytes()});
  EXPECT_EQ(lane_.cost().in_flight(), 0);
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
