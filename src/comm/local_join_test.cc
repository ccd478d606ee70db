#include "comm/local_join.h"

#include <gmock/gmock.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <future>

#include "base/check.h"
#include "comm/contract_testing.h"

namespace kvcake {
namespace {

using namespace testing_util;

class ControlPair {
 public:
  ControlPair() {
    const auto ends = NewControlSockets();
    CHECK(ends.has_value());
    leader_ = ends->leader;
    worker_ = ends->worker;
  }
  ~ControlPair() {
    CloseLeader();
    close(worker_);
  }
  void CloseLeader() {
    if (leader_ >= 0) close(leader_);
    leader_ = -1;
  }
  int leader() const { return leader_; }
  int worker() const { return worker_; }

 private:
  int leader_, worker_;
};

std::future<Result<std::unique_ptr<Comm>>> Await(const ControlPair& control,
                                                 const std::stop_token& stop = {}) {
  return std::async(std::launch::async,
                    [fd = control.worker(), stop] { return AwaitLocalLeader(fd, stop); });
}

TEST(LocalJoinTest, AWorkerHasOneChainAfterTheOther) {
  const ControlPair first, second;
  for (int chain = 0; chain < 3; ++chain) {
    auto a = Await(first), b = Await(second);
    const auto leader = GatherLocalWorkers(std::array{first.leader(), second.leader()});
    ASSERT_TRUE(leader) << leader.error().message;
    const auto rank_0 = a.get(), rank_1 = b.get();
    ASSERT_TRUE(rank_0 && rank_1);
    EXPECT_EQ((*leader)->rank(), 2);
    EXPECT_EQ((*rank_0)->rank(), 0);
    EXPECT_EQ((*rank_1)->rank(), 1);
    EXPECT_EQ((*rank_1)->size(), 3);
    const Bytes out = Pattern(chain, 3 << 20);
    Bytes in(out.size());
    TransferWait sent;
    (*rank_0)->Send(1, chain, out, sent.Add(1));
    ExpectOk(ReceiveAndWait(**rank_1, 0, chain, in));
    ExpectOk(sent.Wait(Patience(), "send"));
    EXPECT_TRUE(in == out);
  }
}

// While it was away: the leader has given up on them.
TEST(LocalJoinTest, ChainsThatAreOverEndAtOnce) {
  const ControlPair control;
  for (int chain = 0; chain < 2; ++chain) {
    ASSERT_TRUE(GatherLocalWorkers(std::array{control.leader()}));
  }
  const auto leader = GatherLocalWorkers(std::array{control.leader()});
  ASSERT_TRUE(leader);
  const std::byte byte{1};
  std::byte received{0};
  for (int chain = 0; chain < 2; ++chain) {
    const auto over = Await(control).get();
    ASSERT_TRUE(over);
    ExpectCode(ReceiveAndWait(**over, 1, 0, std::span(&received, 1)), ErrorCode::kIo);
  }
  const auto worker = Await(control).get();
  ASSERT_TRUE(worker);
  TransferWait sent;
  (*leader)->Send(0, 0, std::span(&byte, 1), sent.Add(0));
  ExpectOk(ReceiveAndWait(**worker, 1, 0, std::span(&received, 1)));
  ExpectOk(sent.Wait(Patience(), "send"));
  EXPECT_EQ(received, byte);
}

TEST(LocalJoinTest, TheLeadersEndIsTheWorkers) {
  ControlPair control;
  auto waiting = Await(control);
  control.CloseLeader();
  const auto ended = waiting.get();
  ASSERT_FALSE(ended);
  EXPECT_EQ(ended.error().code, ErrorCode::kNotFound);
}

TEST(LocalJoinTest, WaitingEndsWhenItIsToldTo) {
  const ControlPair control;
  std::stop_source stop;
  auto waiting = Await(control, stop.get_token());
  stop.request_stop();
  const auto ended = waiting.get();
  ASSERT_FALSE(ended);
  EXPECT_EQ(ended.error().code, ErrorCode::kCancelled);
}

TEST(LocalJoinTest, AWorkerThatIsGoneIsNamed) {
  const auto ends = NewControlSockets();
  ASSERT_TRUE(ends);
  close(ends->worker);
  const auto leader = GatherLocalWorkers(std::array{ends->leader});
  close(ends->leader);
  ASSERT_FALSE(leader);
  EXPECT_EQ(leader.error().code, ErrorCode::kIo);
  EXPECT_THAT(leader.error().message, testing::HasSubstr("rank 0"));
}

TEST(LocalJoinTest, WhatIsNoChainIsRefused) {
  const ControlPair control;
  const std::string says(100, 'x');
  for (const size_t bytes : {1u, 12u, 100u}) {
    ASSERT_EQ(send(control.leader(), says.data(), bytes, 0), static_cast<ssize_t>(bytes));
    const auto refused = Await(control).get();
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::kCorrupt);
  }
  // What the leader says of a worker: the magic number, its rank, how many ranks there are. Without
  // the descriptors that belong to it.
  using Said = std::array<int32_t, 3>;
  for (const Said& call : {Said{0x314c564b, 0, 2}, Said{0x314c564b, 1, 2}, Said{0x314c564b, -1, 1},
                           Said{0x314c564b, 0, 1}, Said{0x314c564b, 0, 1 << 30}}) {
    ASSERT_EQ(send(control.leader(), call.data(), sizeof(call), 0), ssize_t{sizeof(call)});
    const auto refused = Await(control).get();
    ASSERT_FALSE(refused) << "rank " << call[1] << " of " << call[2];
    EXPECT_EQ(refused.error().code, ErrorCode::kCorrupt);
  }
}

}  // namespace
}  // namespace kvcake
