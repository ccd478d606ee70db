#include "store/device_health.h"

#include <gtest/gtest.h>

#include "store/disk_testing.h"

namespace kvcake {
namespace {

using namespace testing_util;
using Kind = OverdueWatch::Kind;

class DeviceHealthTest : public testing::Test {
 protected:
  static DiskTierOptions Options() {
    DiskTierOptions options = SmallOptions("nowhere");
    options.failures_max = 3;
    options.overdue_after = Seconds(10);
    options.probe_interval = Seconds(5);
    options.call_threads = 2;
    return options;
  }

  DeviceHealth health_{Options()};
  const TimePoint now_ = Clock::Real().Now();
  const TimePoint later_ = now_ + Seconds(100);
};

TEST_F(DeviceHealthTest, AReadThatIsOverdueStopsEverythingUntilAProbeGoesWell) {
  const uint64_t read = health_.BeginRead("file");
  health_.Check(now_);
  EXPECT_TRUE(health_.answers() && health_.MayRead() && health_.MayLook() && health_.MayWrite());
  health_.Check(later_);
  EXPECT_FALSE(health_.answers() || health_.MayRead() || health_.MayLook() || health_.MayWrite());
  EXPECT_EQ(health_.reads_overdue(), 1);
  EXPECT_EQ(health_.TakeProbe(later_), "file");
  health_.Succeeded();
  EXPECT_TRUE(health_.answers() && health_.MayRead() && health_.MayLook() && health_.MayWrite());
  EXPECT_EQ(health_.reads_overdue(), 1) << "its buffer is still the device's";
  health_.EndRead(read);
  EXPECT_EQ(health_.reads_overdue(), 0);
}

TEST_F(DeviceHealthTest, AWriteThatIsOverdueStopsWritesAlone) {
  {
    const Watched write = health_.Watch(Kind::kWrite, "file");
    health_.Check(later_);
    EXPECT_TRUE(health_.MayRead() && health_.MayLook());
    EXPECT_FALSE(health_.MayWrite());
  }
  EXPECT_TRUE(health_.MayWrite());
}

TEST_F(DeviceHealthTest, LooksThatAreOverdueAreNotFollowedByOthersOnceTheyHaveEachThread) {
  const Watched first = health_.Watch(Kind::kLook, "file");
  health_.Check(later_);
  EXPECT_FALSE(health_.answers() || health_.MayLook());
  health_.Succeeded();
  EXPECT_TRUE(health_.MayRead() && health_.MayLook());
  {
    const Watched second = health_.Watch(Kind::kLook, "file");
    health_.Check(later_);
    health_.Succeeded();
    EXPECT_TRUE(health_.MayRead() && health_.MayClaim());
    EXPECT_FALSE(health_.MayLook()) << "it would wait behind them";
  }
  EXPECT_TRUE(health_.MayLook());
}

// There is one thread for claims.
TEST_F(DeviceHealthTest, AClaimThatIsOverdueIsNotFollowedByAnother) {
  {
    const Watched claim = health_.Watch(Kind::kClaim, "file");
    health_.Check(later_);
    EXPECT_FALSE(health_.answers() || health_.MayClaim());
    health_.Succeeded();
    EXPECT_TRUE(health_.MayRead() && health_.MayLook() && health_.MayWrite());
    EXPECT_FALSE(health_.MayClaim()) << "it would wait behind the first";
  }
  EXPECT_TRUE(health_.MayClaim());
  const Watched write = health_.Watch(Kind::kWrite, "file");
  health_.Check(later_);
  EXPECT_FALSE(health_.MayClaim()) << "nor where nothing can be written";
}

TEST_F(DeviceHealthTest, WhereReadsFailWritesGoOn) {
  for (int i = 0; i < 3; ++i) health_.Failed("file");
  EXPECT_FALSE(health_.answers() || health_.MayRead());
  EXPECT_TRUE(health_.MayWrite());
}

TEST_F(DeviceHealthTest, WhereAllReadsAreLostNothingIsTold) {
  health_.SetReadsLost(true);
  EXPECT_TRUE(health_.answers()) << "what asks for no buffer goes on";
  EXPECT_TRUE(health_.MayWrite());
  EXPECT_FALSE(health_.MayRead() || health_.MayLook());
  health_.SetReadsLost(false);
  EXPECT_TRUE(health_.MayRead());
}

TEST_F(DeviceHealthTest, IsCheckedWhenTheNextMayBeOverdue) {
  EXPECT_EQ(health_.NextCheck(now_), now_ + Seconds(10)) << "a look or write may begin at once";
  const Watched write = health_.Watch(Kind::kWrite, "file");
  EXPECT_GE(health_.NextCheck(now_), now_ + Seconds(10));
  EXPECT_LT(health_.NextCheck(later_), later_);
  health_.Check(later_);
  EXPECT_EQ(health_.NextCheck(later_), later_ + Seconds(10)) << "once is enough";
}

}  // namespace
}  // namespace kvcake
