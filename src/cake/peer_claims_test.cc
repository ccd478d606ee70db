#include "cake/peer_claims.h"

#include <gtest/gtest.h>

#include "cake/restorer.h"

namespace kvcake {
namespace {

// Slices of four chunks and a second.
class PeerClaimsTest : public testing::Test {
 protected:
  static TimePoint At(double s) {
    return TimePoint() + std::chrono::duration_cast<TimePoint::duration>(Seconds(s));
  }
  bool MayWait(double now_s) { return peers_.MayWait(options_, At(now_s), 1, turn_s_); }
  // Another process has made chunks up to this one.
  void Come(int front) {
    for (; came_ < front; ++came_) peers_.Set(came_, PeerState::kCame);
    peers_.ReachedFront(front, 0.25);
  }
  ClaimOptions options_{.lost_slices = 1.25, .lost_share = 0.02};
  PeerClaims peers_{400};
  int came_ = 0;
  double turn_s_ = 1;
};

TEST_F(PeerClaimsTest, OneThatIsAsQuickIsWaitedForToTheEnd) {
  for (int slice = 0; slice < 100; ++slice) {
    for (double passed : {0.0, 0.5, 1.0}) EXPECT_TRUE(MayWait(slice + passed)) << slice;
    Come(4 * (slice + 1));
  }
  EXPECT_TRUE(peers_.has_waited());
}

TEST_F(PeerClaimsTest, OneThatStopsIsGivenUpHoweverMuchItHasGiven) {
  Come(200);
  EXPECT_TRUE(MayWait(0));
  EXPECT_TRUE(MayWait(1.2));
  EXPECT_FALSE(MayWait(1.3));
  EXPECT_FALSE(MayWait(1.3)) << "what is lost is not lost twice";
}

TEST_F(PeerClaimsTest, OneThatIsSlowerIsGivenUpWhenThatHasCostEnough) {
  double now_s = 0;
  int slices = 0;
  for (; MayWait(now_s) && MayWait(now_s + 1.2); ++slices) {  // by a fifth
    now_s += 1.2;
    Come(4 * (slices + 1));
  }
  EXPECT_EQ(slices, 1);  // 0.2 of 1.25 are lost, and another 1.2 would be too much
}

TEST_F(PeerClaimsTest, WhoComputesForLongMayWaitAgain) {
  options_.proven_slices = 1000;
  EXPECT_TRUE(MayWait(0));
  EXPECT_FALSE(MayWait(1.25));
  peers_.Computes(10);
  EXPECT_TRUE(MayWait(20)) << "the time of computing is not waiting";
  EXPECT_TRUE(MayWait(20.1));
  EXPECT_FALSE(MayWait(20.3));
}

// It may have been late for others: as they were when one was killed that all waited for.
TEST_F(PeerClaimsTest, OneThatStaysAheadGetsASecondChanceAndNoThird) {
  for (const bool again : {false, true}) {
    const double at_s = again ? 100 : 0;
    EXPECT_EQ(MayWait(at_s), !again);
    EXPECT_FALSE(MayWait(at_s + 1.3));
    peers_.Computes(1);
    EXPECT_FALSE(MayWait(at_s + 3)) << "one slice ahead of where it stopped it may have claimed";
    peers_.Computes(1);
    EXPECT_EQ(MayWait(at_s + 4), !again);
    EXPECT_FALSE(MayWait(at_s + 5.4));
  }
}

TEST_F(PeerClaimsTest, TurnsOfOtherPromptsAreTimeToWaitAndNoProofOfBeingAhead) {
  turn_s_ = 3;
  EXPECT_TRUE(MayWait(0));
  EXPECT_TRUE(MayWait(3.7));
  EXPECT_FALSE(MayWait(3.8));
  peers_.Computes(2);
  EXPECT_TRUE(MayWait(10)) << "two slices of its own are enough";
}

TEST_F(PeerClaimsTest, OnlyWhatOthersMadeMeanwhilePaysBack) {
  EXPECT_TRUE(MayWait(0));
  EXPECT_FALSE(MayWait(1.5));
  peers_.ReachedFront(100, 0.25);  // all of it was there before
  EXPECT_FALSE(MayWait(2));
  came_ = 100;
  Come(102);
  EXPECT_TRUE(MayWait(3));
}

TEST_F(PeerClaimsTest, WhetherItTakesPartIsDecidedOnce) {
  EXPECT_FALSE(peers_.decided() || peers_.active());
  peers_.Decide(true);
  EXPECT_TRUE(peers_.decided() && peers_.active());
}

}  // namespace
}  // namespace kvcake
