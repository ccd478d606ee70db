#include "comm/wait.h"

#include <gtest/gtest.h>

#include <optional>
#include <thread>

namespace kvcake {
namespace {

TimePoint Soon() { return Clock::Real().Now() + Seconds(0.01); }

TEST(TransferWaitTest, NothingAddedHasEnded) {
  const TransferWait wait;
  EXPECT_TRUE(wait.Wait(Clock::Real().Now(), "nothing"));
  EXPECT_TRUE(wait.Done());
}

TEST(TransferWaitTest, WaitsForAllThatWereAdded) {
  TransferWait wait;
  std::vector<Comm::Done> dones;
  for (int i = 0; i < 10; ++i) dones.push_back(wait.Add(i / 2));
  std::thread thread([&] {
    for (auto& done : dones) done({});
  });
  EXPECT_TRUE(wait.Wait(TimePoint::max(), "ten"));
  EXPECT_TRUE(wait.Done());
  thread.join();
}

TEST(TransferWaitTest, TheFirstErrorEndsIt) {
  TransferWait wait;
  const Comm::Done a = wait.Add(0), b = wait.Add(0), c = wait.Add(1);
  a(Fail(ErrorCode::kIo, "first"));
  EXPECT_EQ(wait.Wait(TimePoint::max(), "three").error().message, "first");
  EXPECT_FALSE(wait.Done());
  b(Fail(ErrorCode::kIo, "second"));
  c({});
  EXPECT_TRUE(wait.Done());
  EXPECT_EQ(wait.Wait(TimePoint::max(), "three").error().message, "first");
}

TEST(TransferWaitTest, TheDeadlineSaysWhoIsLeft) {
  TransferWait wait;
  const Comm::Done a = wait.Add(7), b = wait.Add(1), c = wait.Add(0), d = wait.Add(7);
  b({});
  const Status status = wait.Wait(Soon(), "layer 3");
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kDeadline);
  EXPECT_EQ(status.error().message,
            "layer 3: rank 0, 7 is not done in time: it hangs, or the network does "
            "(--rank-timeout)");
  a({});
  d({});
  c({});
  EXPECT_TRUE(wait.Wait(Soon(), "layer 3"));
}

TEST(TransferWaitTest, ADoneMayOutliveIt) {
  std::optional<TransferWait> wait(std::in_place);
  const Comm::Done done = wait->Add(0);
  wait.reset();
  done({});
}

}  // namespace
}  // namespace kvcake
