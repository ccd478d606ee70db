#include "comm/watch.h"

#include <gmock/gmock.h>

#include <atomic>
#include <future>

#include "comm/local_comms_testing.h"

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

}  // namespace
}  // namespace kvcake
