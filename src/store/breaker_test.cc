#include "store/breaker.h"

#include <gtest/gtest.h>

#include "base/log_testing.h"

namespace kvcake {
namespace {

using testing_util::CapturedLog;

TEST(BreakerTest, OpensAfterFailuresInARowAndClosesWithASuccess) {
  Breaker breaker(3, Seconds(10));
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < 2; ++i) breaker.Failed("a");
    breaker.Succeeded();
    for (int i = 0; i < 2; ++i) breaker.Failed("a");
    EXPECT_FALSE(breaker.open()) << "they were not in a row";
    breaker.Failed("b");
    EXPECT_TRUE(breaker.open());
    breaker.Succeeded();
    EXPECT_FALSE(breaker.open());
  }
}

TEST(BreakerTest, ADeviceThatComesAndGoesIsToldOfOnceAMinute) {
  CapturedLog log;
  Breaker breaker(2, Seconds(10));
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 2; ++i) breaker.Failed("a");
    breaker.Succeeded();
    breaker.Failed("a");
    breaker.Succeeded();
  }
  EXPECT_EQ(log.Count("the device of a does not answer"), 1);
  EXPECT_EQ(log.Count("the device of a answers again"), 1);
}

TEST(BreakerTest, ProbesAreDueOneIntervalApartWhileItIsOpen) {
  Breaker breaker(3, Seconds(10));
  const TimePoint now = Clock::Real().Now();
  EXPECT_FALSE(breaker.TakeProbe(now + Seconds(100)));
  EXPECT_FALSE(breaker.next_probe());
  breaker.Overdue("file");
  EXPECT_TRUE(breaker.open());
  EXPECT_FALSE(breaker.TakeProbe(now));
  EXPECT_EQ(breaker.TakeProbe(now + Seconds(20)), "file");
  EXPECT_FALSE(breaker.TakeProbe(now + Seconds(29))) << "one has just been made";
  EXPECT_EQ(breaker.TakeProbe(now + Seconds(31)), "file");
  breaker.Succeeded();
  EXPECT_FALSE(breaker.TakeProbe(now + Seconds(100)));
}

TEST(BreakerTest, ADeviceThatFailsDoesNotHang) {
  Breaker breaker(1, Seconds(10));
  breaker.Failed("a");
  EXPECT_TRUE(breaker.open());
  EXPECT_FALSE(breaker.hangs());
  breaker.Overdue("a");
  EXPECT_TRUE(breaker.hangs());
  breaker.Failed("a");
  EXPECT_FALSE(breaker.hangs()) << "an error is an answer";
  EXPECT_TRUE(breaker.open());
  breaker.Overdue("a");
  breaker.Succeeded();
  EXPECT_FALSE(breaker.hangs() || breaker.open());
}

}  // namespace
}  // namespace kvcake
