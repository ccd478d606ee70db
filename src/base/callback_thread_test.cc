#include "base/callback_thread.h"

#include <gtest/gtest.h>

#include <latch>
#include <memory>
#include <vector>

namespace kvcake {
namespace {

constexpr Seconds kHour{3600};

TEST(CallbackThreadTest, FunctionsRunByTheirTimesAndTheFirstGivenFirst) {
  struct Run {
    int second, number;
    bool operator==(const Run&) const = default;
  };
  std::vector<Run> runs;
  {
    std::latch all_given(1);
    CallbackThread thread;
    thread.Soon([&] { all_given.wait(); });
    int number = 0;
    for (const int second : {3, 1, 2, 1}) {
      thread.At(TimePoint(Seconds(second)), [&runs, run = Run{second, number++}] {  //
        runs.push_back(run);
      });
    }
    all_given.count_down();
  }
  EXPECT_EQ(runs, (std::vector<Run>{{1, 1}, {1, 3}, {2, 2}, {3, 0}}));
}

// Asks often, so that the thread sleeps, with nothing to do or until the later one's time, when the
// other comes.
TEST(CallbackThreadTest, WhatIsDueRunsWhateverComesLater) {
  CallbackThread thread;
  const auto ask_often = [&] {
    for (int i = 0; i < 1000; ++i) {
      std::latch done(1);
      thread.Soon([&] { done.count_down(); });
      done.wait();
    }
  };
  ask_often();
  thread.At(Clock::Real().Now() + kHour, [] {});
  ask_often();
}

TEST(CallbackThreadTest, TheEndRunsWhatIsLeftAndWhatThatAsksForWhateverTheirTimes) {
  int runs = 0;
  {
    CallbackThread thread;
    for (const TimePoint time : {Clock::Real().Now() + kHour, TimePoint::max()}) {
      thread.At(time, [&] {
        ++runs;
        thread.At(TimePoint::max(), [&] { ++runs; });
      });
    }
  }
  EXPECT_EQ(runs, 4);
}

// Buffers and answers that a function owns go with it, and may ask for more.
TEST(CallbackThreadTest, WhatAFunctionHeldGoesWithoutTheLock) {
  std::latch gone(1);
  CallbackThread thread;
  const auto goes = [&](int*) { thread.Soon([&] { gone.count_down(); }); };
  thread.Soon([held = std::shared_ptr<int>(nullptr, goes)] {});
  gone.wait();
}

}  // namespace
}  // namespace kvcake
