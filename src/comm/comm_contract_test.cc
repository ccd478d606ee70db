// One suite of promises, run against every Comm and decorator in one process; MPI's is in
// tests/mpi_comm_test.cc.
#include <gmock/gmock.h>

#include <atomic>
#include <memory>

#include "base/check.h"
#include "comm/contract_testing.h"
#include "comm/local_comms_testing.h"
#include "comm/memory_comm.h"
#include "comm/shaped_comm.h"

namespace kvcake {
namespace {

using namespace testing_util;
using testing::HasSubstr;

Comms Shaped(Comms inner) {
  const ShapedCommOptions options = {
      .link = {.rate_bytes_per_s = 1e9, .latency = Seconds(1e-4)},
      .link_to = {{1, {.rate_bytes_per_s = 2e9}}},
      .noise = {.slowdown = 4, .burst_mean = Seconds(1e-3), .gap_mean = Seconds(1e-3)},
      .epoch = Clock::Real().Now()};
  for (auto& comm : inner) comm = NewShapedComm(std::move(comm), options);
  return inner;
}

struct Kind {
  const char* name;
  Comms (*make)(int size);
};

const Kind kKinds[] = {
    {"memory", NewMemoryComms},
    {"tcp", [](int size) { return NewLocalTcpComms(size); }},
    {"tcp_little_aside", [](int size) { return NewLocalTcpComms(size, 12'000); }},
    {"tls", NewLocalTlsComms},
    {"socket_pairs", NewSocketPairComms},
    {"shaped_memory", [](int size) { return Shaped(NewMemoryComms(size)); }},
    {"shaped_tcp", [](int size) { return Shaped(NewLocalTcpComms(size)); }},
};

class CommContractTest : public testing::TestWithParam<std::tuple<Kind, Scenario, int>> {};

TEST_P(CommContractTest, Holds) {
  const auto& [kind, scenario, size] = GetParam();
  const Comms comms = kind.make(size);
  std::vector<std::thread> ranks;
  for (const auto& comm : comms) {
    ASSERT_EQ(comm->size(), size);
    ranks.emplace_back(scenario.run, std::ref(*comm));
  }
  for (std::thread& rank : ranks) rank.join();
}

INSTANTIATE_TEST_SUITE_P(All, CommContractTest,
                         testing::Combine(testing::ValuesIn(kKinds), testing::ValuesIn(kScenarios),
                                          testing::Values(2, 4)),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param).name) + "_" +
                                  std::get<1>(info.param).name + "_" +
                                  std::to_string(std::get<2>(info.param));
                         });

class CommCloseTest : public testing::TestWithParam<Kind> {};

Error Stop() { return {ErrorCode::kCancelled, "stop"}; }

TEST_P(CommCloseTest, EndsWhatIsLeftAndWhatComesLater) {
  Comms comms = GetParam().make(3);
  constexpr int kReceives = 20;
  std::vector<Bytes> into(kReceives, Bytes(100, std::byte{0xee}));
  Bytes large(40 << 20);
  std::atomic<int> receives_stopped = 0, sends_ended = 0;
  for (int tag = 0; tag < kReceives; ++tag) {
    comms[0]->Receive(1 + tag % 2, tag, into[tag], [&](Status status) {
      if (!status && status.error().message == "stop") ++receives_stopped;
    });
  }
  TransferWait peers;
  Bytes never(1), half(large.size());
  comms[1]->Receive(0, 1, half, [](Status) {});
  comms[0]->Send(1, 1, large, [&](Status) { ++sends_ended; });
  comms[1]->Receive(0, 99, never, peers.Add(0));
  comms[0]->Close(Stop());
  EXPECT_EQ(receives_stopped, kReceives);
  EXPECT_EQ(sends_ended, 1);
  Bytes().swap(large);

  const Status status = peers.Wait(Patience(), "the peer");
  ExpectCode(status, ErrorCode::kIo);
  EXPECT_THAT(status.error().message, HasSubstr("rank 0"));
  const Bytes message(100);
  TransferWait late;
  for (int tag = 0; tag < kReceives; ++tag) comms[1 + tag % 2]->Send(0, tag, message, late.Add(0));
  comms[0]->Close({ErrorCode::kCancelled, "the second reason"});
  EXPECT_EQ(ReceiveAndWait(*comms[0], 1, 5, into[5]).error().message, "stop");
  EXPECT_EQ(SendAndWait(*comms[0], 1, 5, message).error().message, "stop");
  for (const Bytes& bytes : into) EXPECT_EQ(bytes, Bytes(100, std::byte{0xee}));

  Bytes heard(100, std::byte{1});
  comms[1]->Send(2, 3, message, peers.Add(2));
  ExpectOk(ReceiveAndWait(*comms[2], 1, 3, heard));
  EXPECT_EQ(heard, message) << "the others are not concerned";
  comms.clear();
  EXPECT_TRUE(late.Done());
}

TEST_P(CommCloseTest, ALostPeerIsAnErrorOfTheTransfersWithIt) {
  Comms comms = GetParam().make(3);
  const Bytes large = Pattern(1, 4 << 20);
  TransferWait with_1, with_2;
  Bytes from_1(large.size()), never(1), from_2(large.size());
  comms[0]->Receive(1, 1, from_1, with_1.Add(1));
  comms[0]->Receive(2, 1, from_2, with_2.Add(2));
  comms[1]->Send(0, 1, large, [](Status) {});
  comms[2]->Send(0, 1, large, [](Status) {});
  ExpectOk(with_1.Wait(Patience(), "what was sent"));
  comms[0]->Receive(1, 2, never, with_1.Add(1));
  comms[1]->Receive(0, 9, never, [](Status) {});
  comms[1].reset();
  const Status status = with_1.Wait(Patience(), "the lost peer");
  ExpectCode(status, ErrorCode::kIo);
  EXPECT_THAT(status.error().message, HasSubstr("rank 1"));
  ExpectCode(ReceiveAndWait(*comms[0], 1, 3, never), ErrorCode::kIo);
  // A send may still be taken by the kernel, but not for ever.
  while (SendAndWait(*comms[0], 1, 4, large)) {
  }
  ExpectOk(with_2.Wait(Patience(), "the other peer"));
  EXPECT_TRUE(from_2 == large);
  TransferWait more;
  comms[2]->Receive(0, 5, from_2, more.Add(0));
  ExpectOk(SendAndWait(*comms[0], 2, 5, large));
  ExpectOk(more.Wait(Patience(), "the other peer"));
}

// One that waits for the rank, and one that it does not read from.
TEST_P(CommCloseTest, OthersHearWhy) {
  Comms comms = GetParam().make(3);
  Bytes never(1);
  const Bytes small(1), large(80 << 20);
  TransferWait waits, sends;
  comms[1]->Receive(0, 1, never, waits.Add(0));
  comms[2]->Send(0, 2, large, sends.Add(0));
  comms[0]->Send(1, 3, small, [](Status) {});  // has just begun
  comms[0]->Close({ErrorCode::kResourceExhausted, "out of pages: raise --ram-capacity"});
  for (const TransferWait* wait : {&waits, &sends}) {
    const Status status = wait->Wait(Patience(), "the peer");
    ExpectCode(status, ErrorCode::kIo);
    EXPECT_THAT(status.error().message, HasSubstr("rank 0"));
    EXPECT_THAT(status.error().message, HasSubstr("out of pages: raise --ram-capacity"));
  }
}

// Traffic in all directions when a rank closes, at any moment; whatever it was given has ended when
// Close returns, and its buffers may go.
TEST_P(CommCloseTest, AtAnyMoment) {
  for (int round = 0; round < 20; ++round) {
    Comms comms = GetParam().make(3);
    constexpr int kMessages = 100;
    auto bytes = std::make_unique<std::vector<Bytes>>(4 * kMessages, Bytes(1 + 977 * round));
    std::atomic<int> ended = 0;
    TransferWait others, some;
    std::vector<Bytes> theirs(8 * kMessages, Bytes(1 + 977 * round));
    std::vector<std::thread> threads;
    threads.emplace_back([&] {
      size_t next = 0;
      for (int i = 0; i < kMessages; ++i) {
        for (int peer : {1, 2}) {
          comms[0]->Send(peer, i % 5, (*bytes)[next++], [&](Status) { ++ended; });
          const Comm::Done one = i == 3 * round ? some.Add(peer) : Comm::Done([](Status) {});
          comms[0]->Receive(peer, i % 5, (*bytes)[next++], [&ended, one](Status status) {
            ++ended;
            one(std::move(status));
          });
        }
      }
    });
    for (int rank : {1, 2}) {
      threads.emplace_back([&, rank] {
        size_t next = (rank - 1) * 4 * kMessages;
        for (int i = 0; i < kMessages; ++i) {
          for (int peer = 0; peer < 3; ++peer) {
            if (peer == rank) continue;
            comms[rank]->Send(peer, i % 5, theirs[next++], others.Add(peer));
            comms[rank]->Receive(peer, i % 5, theirs[next++], others.Add(peer));
          }
        }
      });
    }
    threads.front().join();
    (void)some.Wait(Patience(), "some");
    comms[0]->Close(Stop());
    EXPECT_EQ(ended, 4 * kMessages);
    bytes.reset();
    for (size_t i = 1; i < threads.size(); ++i) threads[i].join();
    comms.clear();
    EXPECT_TRUE(others.Done());
  }
}

INSTANTIATE_TEST_SUITE_P(All, CommCloseTest, testing::ValuesIn(kKinds),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace kvcake
