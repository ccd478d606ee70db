#include "store/overdue_watch.h"

#include <gtest/gtest.h>

namespace kvcake {
namespace {

using Kind = OverdueWatch::Kind;

TEST(OverdueWatchTest, CountsWhatTakesTooLongUntilItEnds) {
  OverdueWatch watch(Seconds(10));
  EXPECT_FALSE(watch.next_check());
  const TimePoint now = Clock::Real().Now();
  const uint64_t read = watch.Begin(Kind::kRead, "read");
  const uint64_t other = watch.Begin(Kind::kRead, "other");
  watch.End(other);
  EXPECT_FALSE(watch.Check(now + Seconds(5)));
  EXPECT_EQ(watch.overdue(Kind::kRead), 0);
  EXPECT_GE(*watch.next_check(), now + Seconds(10));
  EXPECT_EQ(watch.Check(now + Seconds(1000)), "read");
  EXPECT_EQ(watch.overdue(Kind::kRead), 1) << "what has ended is not";
  EXPECT_FALSE(watch.Check(now + Seconds(2000))) << "it has been said";
  EXPECT_FALSE(watch.next_check());
  watch.End(read);
  EXPECT_EQ(watch.overdue(Kind::kRead), 0);
  watch.End(read);
  EXPECT_EQ(watch.overdue(Kind::kRead), 0);
}

TEST(OverdueWatchTest, AWriteThatHangsSaysNothingOfReads) {
  OverdueWatch watch(Seconds(10));
  const TimePoint later = Clock::Real().Now() + Seconds(1000);
  {
    const Watched write(watch, Kind::kWrite, "write");
    EXPECT_FALSE(watch.Check(later));
    EXPECT_EQ(watch.overdue(Kind::kWrite), 1);
    EXPECT_EQ(watch.overdue(Kind::kRead) + watch.overdue(Kind::kLook), 0);
    const Watched look(watch, Kind::kLook, "look");
    EXPECT_EQ(watch.Check(later), "look");
  }
  EXPECT_EQ(watch.overdue(Kind::kWrite) + watch.overdue(Kind::kLook), 0);
}

}  // namespace
}  // namespace kvcake
