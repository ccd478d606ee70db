#include "comm/shaped_comm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "comm/contract_testing.h"
#include "comm/memory_comm.h"

namespace kvcake {
namespace {

using namespace testing_util;

constexpr double kRate = 1e6;
const LinkNoise kNoise = {
    .seed = 7, .slowdown = 5, .burst_mean = Seconds(0.02), .gap_mean = Seconds(0.05)};

TimePoint At(double s) { return TimePoint(Seconds(s)); }

TEST(LinkBurstsTest, AQuietLinkTakesBytesByRate) {
  LinkBursts bursts({}, 4, At(0));
  EXPECT_NEAR(bursts.Passed(1, 2, At(3), 5e5, kRate).time_since_epoch().count(), 3.5, 1e-9);
  EXPECT_EQ(bursts.Passed(1, 2, At(3), 0, kRate), At(3));
}

TEST(LinkBurstsTest, LinksBetweenRanksThatAreNoNeighboursStayQuiet) {
  LinkBursts bursts(kNoise, 4, At(0));
  EXPECT_NEAR(bursts.Passed(0, 2, At(0), 1e7, kRate).time_since_epoch().count(), 10, 1e-9);
}

TEST(LinkBurstsTest, OneMessageOrManyPassInTheSameTime) {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    LinkBursts once(kNoise, 3, At(0)), pieces(kNoise, 3, At(0));
    const TimePoint start = At(random() % 1000 * 1e-3);
    double total = 0;
    TimePoint end = start;
    for (int i = 0; i < 20; ++i) {
      const double bytes = random() % 30000;
      total += bytes;
      const TimePoint next = pieces.Passed(2, 1, end, bytes, kRate);
      EXPECT_GE((next - end).count(), bytes / kRate - 1e-9);
      EXPECT_LE((next - end).count(), kNoise.slowdown * bytes / kRate + 1e-9);
      end = next;
      if (i % 3 == 0) pieces.Forget(end);
    }
    // Both directions are one link to the noise.
    EXPECT_NEAR((once.Passed(1, 2, start, total, kRate) - end).count(), 0, 1e-9);
  }
}

TEST(LinkBurstsTest, OneNeighbouringPairAtATimeIsNoisy) {
  // What passes in 1 ms tells whether a burst was on.
  std::vector<LinkBursts> links(3, LinkBursts(kNoise, 4, At(0)));
  std::vector<int> noisy(3);
  for (int ms = 0; ms < 20000; ++ms) {
    int now_noisy = 0;
    for (int pair = 0; pair < 3; ++pair) {
      const TimePoint start = At(ms * 1e-3);
      const double byte_s = (links[pair].Passed(pair, pair + 1, start, 1, kRate) - start).count();
      const bool on = byte_s > 2 / kRate;
      noisy[pair] += on;
      now_noisy += on;
    }
    ASSERT_LE(now_noisy, 1) << ms;
  }
  for (int count : noisy) {  // a third of 2/7 of the time each
    EXPECT_GT(count, 20000 * 2 / 21 / 2);
    EXPECT_LT(count, 20000 * 2 / 21 * 2);
  }
}

TEST(LinkBurstsTest, FollowTheirSeed) {
  LinkNoise other = kNoise;
  other.seed = 8;
  LinkBursts a(kNoise, 2, At(0)), b(kNoise, 2, At(0)), c(other, 2, At(0));
  const TimePoint end = a.Passed(0, 1, At(0), 1e6, kRate);
  EXPECT_EQ(b.Passed(0, 1, At(0), 1e6, kRate), end);
  EXPECT_NE(c.Passed(0, 1, At(0), 1e6, kRate), end);
}

// Nothing is early; how late it is depends on the machine.
TEST(ShapedCommTest, MessagesPassALinkOneAfterTheOther) {
  auto comms = NewMemoryComms(2);
  const ShapedCommOptions options = {
      .link = {.rate_bytes_per_s = 1e9},
      .link_to = {{1, {.rate_bytes_per_s = 1e5, .latency = Seconds(0.02)}}}};
  for (auto& comm : comms) comm = NewShapedComm(std::move(comm), options);
  std::vector<Bytes> out(3, Bytes(1000)), in(3, Bytes(1000));
  const TimePoint start = Clock::Real().Now();
  for (int tag = 0; tag < 3; ++tag) comms[0]->Send(1, tag, out[tag], [](Status) {});
  for (int tag = 2; tag >= 0; --tag) {
    ExpectOk(ReceiveAndWait(*comms[1], 0, tag, in[tag]));
    EXPECT_GE((Clock::Real().Now() - start).count(), 0.02 + 0.01 * (tag + 1));
  }
}

// Hours before it would have arrived, and the inner Comm has not seen it.
TEST(ShapedCommTest, WhatIsOnTheWayEndsWhenTheLinkIsClosed) {
  const ShapedCommOptions options = {.link = {.rate_bytes_per_s = 0.1}};
  const Bytes out(1000);
  for (const bool destroyed : {false, true}) {
    auto comms = NewMemoryComms(2);
    comms[0] = NewShapedComm(std::move(comms[0]), options);
    TransferWait sent;
    for (int tag = 0; tag < 3; ++tag) comms[0]->Send(1, tag, out, sent.Add(1));
    if (destroyed) {
      comms[0] = nullptr;
    } else {
      comms[0]->Close({ErrorCode::kIo, "it is cut"});
      comms[0]->Close({ErrorCode::kIo, "it is cut again"});
    }
    const Status ended = sent.Wait(Patience(), "send");
    ExpectCode(ended, destroyed ? ErrorCode::kCancelled : ErrorCode::kIo);
    EXPECT_THAT(ended.error().message,
                testing::HasSubstr(destroyed ? "rank 0 has ended" : "it is cut"));
    if (destroyed) continue;
    const Status late = SendAndWait(*comms[0], 1, 3, out);
    ExpectCode(late, ErrorCode::kIo);
    EXPECT_THAT(late.error().message, testing::EndsWith("it is cut"));
    EXPECT_EQ(comms[0]->sent_bytes(), 0u);
  }
}

}  // namespace
}  // namespace kvcake
