#include "comm/watch.h"

#include <gmock/gmock.h>

#include <atomic>
#include <future>

#include "comm/local_comms_testing.h"
#include "comm/survey.h"

namespace kvcake {
namespace {

using testing::HasSubstr;

TEST(WatchTest, ARankThatGoesIsNamedWhileNothingIsSent) {
  auto comms = testing_util::NewLocalTcpComms(3);
  std::promise<Error> first;
  std::atomic<int> calls = 0;
  WatchPeers(*comms[2], [&](const Error& error) {
    if (calls++ == 0) first.set_value(error);
  });
  EXPECT_EQ(calls, 0);
  comms[1].reset();
  const Error error = first.get_future().get();
  EXPECT_EQ(error.code, ErrorCode::kIo);
  EXPECT_THAT(error.message, HasSubstr("rank 1 at "));
  comms[2].reset();  // its own end is told for the other one
  EXPECT_EQ(calls, 2);
}

TEST(WatchTest, OneMayBeWatchedAndNoOther) {
  auto comms = testing_util::NewLocalTcpComms(3);
  std::promise<Error> first, other;
  WatchPeer(*comms[1], 2, [&](const Error& error) { first.set_value(error); });
  WatchPeer(*comms[1], 0, [&](const Error& error) { other.set_value(error); });
  comms[0].reset();
  EXPECT_THAT(other.get_future().get().message, HasSubstr("rank 0 at "));
  auto watched = first.get_future();
  EXPECT_EQ(watched.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
  comms[2].reset();
  EXPECT_THAT(watched.get().message, HasSubstr("rank 2 at "));
}

TEST(WatchTest, WhatRanksSayToEachOtherIsNoLoss) {
  auto comms = testing_util::NewLocalTcpComms(2);
  std::atomic<int> lost = 0;
  for (const auto& comm : comms) WatchPeers(*comm, [&](const Error&) { ++lost; });
  const Seconds patience(120);
  auto first =
      std::async(std::launch::async, [&] { return SurveyRanks(*comms[0], "a", patience); });
  const auto survey = SurveyRanks(*comms[1], "b", patience);
  EXPECT_TRUE(survey) << survey.error().message;
  EXPECT_TRUE(first.get());
  EXPECT_EQ(lost, 0);
  comms.clear();  // whose ends are told of while what counts them is there
}

}  // namespace
}  // namespace kvcake
