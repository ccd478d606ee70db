#include "store/write_turns.h"

#include <gtest/gtest.h>

#include <atomic>
#include <latch>
#include <optional>
#include <thread>

namespace kvcake {
namespace {

// Never by time: only what a test does lets a write go on.
WriteTurnsOptions ForEver() {
  return {.share = 1e-9, .linger = Seconds(0), .wait_max = Seconds(1e6)};
}

// A thread that asks for a turn, and whether what it waits for had come when it got it.
class Writer {
 public:
  Writer(WriteTurns& turns, const std::atomic<bool>& may)
      : thread_([&turns, &may, this] {
          began_.count_down();
          const auto turn = turns.Wait();
          in_time_ = may.load();
        }) {
    began_.wait();
  }
  bool WaitedForIt() {
    thread_.join();
    return in_time_;
  }

 private:
  std::latch began_{1};
  bool in_time_ = false;
  std::thread thread_;
};

TEST(WriteTurnsTest, WritesDoNotWaitForEachOtherWhereNothingIsRead) {
  WriteTurns turns(ForEver());
  const auto first = turns.Wait();
  const auto second = turns.Wait();
  turns.SetReading(true);
  turns.SetReading(false);
  const auto third = turns.Wait();
}

TEST(WriteTurnsTest, WhileSomethingIsReadOneWritesAndThenReadsAreAlone) {
  WriteTurns turns(ForEver());
  std::atomic<bool> ended{false};
  turns.SetReading(true);
  { const auto first = turns.Wait(); }
  Writer second(turns, ended);
  Writer third(turns, ended);
  ended = true;
  turns.SetReading(false);
  EXPECT_TRUE(second.WaitedForIt());
  EXPECT_TRUE(third.WaitedForIt());
}

TEST(WriteTurnsTest, AWriteWaitsForTheOneBefore) {
  WriteTurnsOptions options = ForEver();
  options.share = 1;
  WriteTurns turns(options);
  std::atomic<bool> ended{false};
  turns.SetReading(true);
  std::optional<Writer> second;
  {
    const auto first = turns.Wait();
    second.emplace(turns, ended);
    ended = true;
  }
  EXPECT_TRUE(second->WaitedForIt());
}

TEST(WriteTurnsTest, NoWriteWaitsForLongerThanTheBound) {
  WriteTurnsOptions options = ForEver();
  options.wait_max = Seconds(1e-3);
  WriteTurns turns(options);
  turns.SetReading(true);
  const auto hangs = turns.Wait();
  const auto goes_on = turns.Wait();
}

TEST(WriteTurnsTest, ADeviceThatWasJustReadCountsAsRead) {
  WriteTurnsOptions options = ForEver();
  options.linger = Seconds(1e6);
  options.wait_max = Seconds(1e-3);
  WriteTurns turns(options);
  turns.SetReading(true);
  turns.SetReading(false);
  const TimePoint began = Clock::Real().Now();
  const auto first = turns.Wait();
  const auto second = turns.Wait();
  EXPECT_GE(Clock::Real().Now() - began, options.wait_max) << "for the first to end";
}

}  // namespace
}  // namespace kvcake
