#include "comm/delivery.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <string>
#include <thread>

#include "base/check.h"
#include "comm/vanish_testing.h"

namespace kvcake {
namespace {

using namespace testing_util;

// The two ends of a connection.
class DeliveryTest : public testing::Test {
 protected:
  DeliveryTest() {
    const int listener = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in name = {};
    name.sin_family = AF_INET;
    name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t bytes = sizeof(name);
    auto* const address = reinterpret_cast<sockaddr*>(&name);
    CHECK(bind(listener, address, bytes) == 0 && listen(listener, 1) == 0);
    CHECK(getsockname(listener, address, &bytes) == 0);
    CHECK(connect(here_, address, bytes) == 0);
    there_ = accept(listener, nullptr, nullptr);
    CHECK(there_ >= 0);
    close(listener);
  }
  void SetUp() override {
    if (!TellsOfDelivery(here_)) GTEST_SKIP();
  }
  ~DeliveryTest() override {
    close(here_);
    close(there_);
  }

  // Until the kernel takes no more.
  void Fill() const {
    const std::string some(64 << 10, 'x');
    while (send(here_, some.data(), some.size(), MSG_DONTWAIT) > 0) {
    }
    CHECK(errno == EAGAIN);
  }
  int TimesSentAgain() const {
    tcp_info info = {};
    socklen_t bytes = sizeof(info);
    CHECK(getsockopt(here_, IPPROTO_TCP, TCP_INFO, &info, &bytes) == 0);
    return info.tcpi_backoff;
  }
  void AwaitSentAgain(int times) const {
    while (TimesSentAgain() < times) std::this_thread::yield();
  }

  const int here_ = socket(AF_INET, SOCK_STREAM, 0);
  int there_ = -1;
};

TEST_F(DeliveryTest, WhatIsTakenIsAcknowledged) {
  EXPECT_EQ(DeliveryOf(here_, Seconds(0)), Delivery::kAcknowledged);
  ASSERT_EQ(send(here_, "x", 1, 0), 1);
  while (DeliveryOf(here_, Seconds(0)) != Delivery::kAcknowledged) std::this_thread::yield();
}

TEST_F(DeliveryTest, WhoHasNoRoomAnswers) {
  Fill();
  AwaitSentAgain(4);
  EXPECT_EQ(DeliveryOf(here_, Seconds(0)), Delivery::kUnderWay);
}

TEST_F(DeliveryTest, WhoHasVanishedDoesNot) {
  Vanish(there_);
  ASSERT_EQ(send(here_, "x", 1, 0), 1);
  EXPECT_EQ(DeliveryOf(here_, Seconds(0)), Delivery::kUnderWay);
  AwaitSentAgain(3);
  EXPECT_EQ(DeliveryOf(here_, Seconds(0)), Delivery::kUnanswered);
  EXPECT_EQ(DeliveryOf(here_, Seconds(3600)), Delivery::kUnderWay);
}

TEST_F(DeliveryTest, WhoVanishesWithoutRoomDoesNot) {
  Fill();
  AwaitSentAgain(1);
  Vanish(there_);
  while (DeliveryOf(here_, Seconds(0)) != Delivery::kUnanswered) std::this_thread::yield();
}

TEST(DeliveryOfTest, LocalSocketsAreNotAsked) {
  std::array<int, 2> ends;
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()), 0);
  ASSERT_EQ(send(ends[0], "x", 1, 0), 1);
  EXPECT_EQ(DeliveryOf(ends[0], Seconds(0)), Delivery::kAcknowledged);
  for (const int end : ends) close(end);
}

}  // namespace
}  // namespace kvcake
