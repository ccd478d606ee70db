#include "comm/tcp_comm.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <future>
#include <optional>
#include <set>

#include "base/check.h"
#include "comm/contract_testing.h"
#include "comm/local_comms_testing.h"
#include "comm/mesh_hello.h"
#include "comm/vanish_testing.h"

namespace kvcake {
namespace {

using namespace testing_util;
using testing::HasSubstr;

using ConnectResult = Result<std::unique_ptr<Comm>>;

TcpListener Listen() {
  auto listener = TcpListener::Open("127.0.0.1:0");
  CHECK(listener.has_value());
  return std::move(*listener);
}

std::string AddressOf(const TcpListener& listener) {
  return fmt::format("127.0.0.1:{}", listener.port());
}

std::future<ConnectResult> Connect(const TcpListener& listener, int rank,
                                   std::vector<std::string> addresses,
                                   Seconds timeout = Seconds(120)) {
  return std::async(std::launch::async, [&listener, rank, addresses, timeout] {
    return ConnectTcp(listener, {.rank = rank, .addresses = addresses, .timeout = timeout});
  });
}

void Say(int fd, std::string_view says) {
  CHECK(send(fd, says.data(), says.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(says.size()));
}

// A socket that somebody else has connected.
int Stranger(const TcpListener& listener, std::string_view says) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(listener.port());
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  CHECK(connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0);
  Say(fd, says);
  return fd;
}

// From somebody who can say hello as rank 1 of two does.
int RankOne(const TcpListener& rank_0) {
  MeshHello hello{.size = 2, .from = 1, .to = 0}, answer;
  const int peer = Stranger(rank_0, PartOf(hello));
  CHECK(recv(peer, &answer, sizeof(answer), MSG_WAITALL) == ssize_t{sizeof(answer)});
  const Digest proof = MeshProof(ClusterKey(), Digest{}, hello, answer).OfCaller();
  Say(peer, PartOf(proof));
  return peer;
}

TEST(TcpCommTest, ListensWhereItIsTold) {
  const TcpListener listener = Listen();
  EXPECT_GT(listener.port(), 0);
  const auto again = TcpListener::Open(AddressOf(listener));
  ASSERT_FALSE(again);
  EXPECT_THAT(again.error().message, HasSubstr("cannot listen at " + AddressOf(listener)));
  for (const char* address : {"", "127.0.0.1", "127.0.0.1:", ":http", "127.0.0.1:12x",
                              "127.0.0.1:65536", "127.0.0.1:99999999999"}) {
    const auto bad = TcpListener::Open(address);
    ASSERT_FALSE(bad) << address;
    EXPECT_EQ(bad.error().code, ErrorCode::kInvalidArgument) << address;
  }
}

TEST(TcpCommTest, RanksMayStartInAnyOrder) {
  auto first = std::make_optional(Listen());
  const TcpListener second = Listen();
  const std::vector<std::string> addresses = {AddressOf(*first), AddressOf(second)};
  first.reset();  // nobody is there yet
  auto connecting = Connect(second, 1, addresses);
  auto late = TcpListener::Open(addresses[0]);
  ASSERT_TRUE(late) << late.error().message;
  const ConnectResult a = ConnectTcp(*late, {.addresses = addresses});
  const ConnectResult b = connecting.get();
  ASSERT_TRUE(a) << a.error().message;
  ASSERT_TRUE(b) << b.error().message;
}

TEST(TcpCommTest, AMissingRankIsNamed) {
  const TcpListener middle = Listen();
  std::string nobody;
  {
    const TcpListener closed = Listen();
    nobody = AddressOf(closed);
  }
  const ConnectResult result = ConnectTcp(
      middle,
      {.rank = 1, .addresses = {nobody, AddressOf(middle), "127.0.0.1:9"}, .timeout = Seconds(1)});
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code, ErrorCode::kDeadline);
  EXPECT_EQ(result.error().message,
            "rank 1 is not connected within 1 s: rank 0 at " + nobody +
                ": Connection refused; rank 2 at 127.0.0.1:9: it has not called");
}

TEST(TcpCommTest, RanksWithDifferentListsSaySo) {
  const TcpListener first = Listen(), second = Listen();
  const std::vector<std::string> two = {AddressOf(first), AddressOf(second)};
  auto three = two;
  three.push_back("127.0.0.1:9");
  auto a = Connect(first, 0, two, Seconds(5));
  const ConnectResult b = Connect(second, 1, three).get();
  ASSERT_FALSE(b);
  EXPECT_EQ(b.error().message, two[0] +
                                   " is rank 0 of 2, where rank 0 of 3 was expected: give every "
                                   "rank the same list of addresses");
  EXPECT_THAT(a.get().error().message, HasSubstr("it called rank 0 of a chain of 3 here"));
}

TEST(TcpCommTest, StrangersHinderNobody) {
  const TcpListener first = Listen(), second = Listen();
  const std::vector<std::string> addresses = {AddressOf(first), AddressOf(second)};
  const int talks = Stranger(first, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
  const int silent = Stranger(first, "");
  MeshHello nobody;
  nobody.size = nobody.from = nobody.to = UINT32_MAX;
  const int claims = Stranger(first, PartOf(nobody));
  auto connecting = Connect(second, 1, addresses);
  const ConnectResult a = ConnectTcp(first, {.addresses = addresses});
  const ConnectResult b = connecting.get();
  ASSERT_TRUE(a && b);
  for (int fd : {talks, silent, claims}) close(fd);
}

TEST(TcpCommTest, AListenerServesOneChainAfterTheOther) {
  const TcpListener first = Listen(), second = Listen();
  const std::vector<std::string> addresses = {AddressOf(first), AddressOf(second)};
  for (int chain = 0; chain < 3; ++chain) {
    auto connecting = Connect(second, 1, addresses);
    const ConnectResult a = ConnectTcp(first, {.addresses = addresses});
    const ConnectResult b = connecting.get();
    ASSERT_TRUE(a && b);
    const Bytes out = Pattern(chain, 1000);
    Bytes in(1000);
    TransferWait sent;
    (*a)->Send(1, chain, out, sent.Add(1));
    ExpectOk(ReceiveAndWait(**b, 0, chain, in));
    EXPECT_EQ(in, out);
    ExpectOk(sent.Wait(Patience(), "send"));
  }
}

TEST(TcpCommTest, WhatIsNoMessageEndsTheTransfersWithThatPeer) {
  const TcpListener rank_0 = Listen();
  auto connecting = Connect(rank_0, 0, {AddressOf(rank_0), "127.0.0.1:9"});
  const int peer = RankOne(rank_0);
  Say(peer, "these bytes are no frame");
  const ConnectResult comm = connecting.get();
  ASSERT_TRUE(comm) << comm.error().message;
  Bytes into(1);
  const Status status = ReceiveAndWait(**comm, 1, 1, into);
  ExpectCode(status, ErrorCode::kCorrupt);
  EXPECT_EQ(status.error().message, "what rank 1 at 127.0.0.1:9 sends is no message");
  ExpectCode(SendAndWait(**comm, 1, 1, into), ErrorCode::kCorrupt);
  close(peer);
}

// Its word is shown on one line, and no longer than a line.
TEST(TcpCommTest, WhatAPeerSaysAsItGoesIsTold) {
  constexpr uint32_t kMagic = 0x3143564b;
  const auto frame = [&](int32_t tag, uint64_t bytes, const std::string& text) {
    std::string all(16, '\0');
    std::memcpy(all.data(), &kMagic, 4);
    std::memcpy(all.data() + 4, &tag, 4);
    std::memcpy(all.data() + 8, &bytes, 8);
    return all + text;
  };
  const std::string gone = "rank 1 at 127.0.0.1:9 is gone: ";
  const std::string nonsense = "what rank 1 at 127.0.0.1:9 sends is no message";
  const std::pair<std::string, std::string> cases[] = {
      {frame(-1, 13, "no\x1b[2J\nmemory and more"), gone + "it says: no?[2J?memory"},
      {frame(-1, 0, ""), gone + "it says: "},
      {frame(-1, 500, std::string(500, 'x')), gone + "it says: " + std::string(500, 'x')},
      {frame(-1, 501, std::string(501, 'x')), nonsense},
      {frame(-1, 500, "too short"), gone + "it closed the connection"},
      {frame(-2, 4, "what"), nonsense}};
  for (const auto& [said, told] : cases) {
    const TcpListener rank_0 = Listen();
    auto connecting = Connect(rank_0, 0, {AddressOf(rank_0), "127.0.0.1:9"});
    const int peer = RankOne(rank_0);
    Say(peer, said);
    shutdown(peer, SHUT_WR);
    const ConnectResult comm = connecting.get();
    ASSERT_TRUE(comm) << comm.error().message;
    Bytes into(1);
    EXPECT_EQ(ReceiveAndWait(**comm, 1, 1, into).error().message, told);
    close(peer);
  }
}

TEST(TcpCommTest, ALongReasonIsToldByItsBeginning) {
  auto comms = NewLocalTcpComms(2);
  Bytes into(1);
  TransferWait lost;
  comms[1]->Receive(0, 1, into, lost.Add(0));
  comms[0]->Close({ErrorCode::kCancelled, std::string(2000, 'x')});
  const Status status = lost.Wait(Patience(), "the end");
  ExpectCode(status, ErrorCode::kIo);
  EXPECT_THAT(status.error().message,
              testing::EndsWith(" is gone: it says: " + std::string(500, 'x')));
}

// The sockets of this process that are connected over TCP.
std::set<int> ConnectedSockets() {
  std::set<int> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int fd = std::stoi(entry.path().filename());
    sockaddr_storage name = {};
    socklen_t bytes = sizeof(name);
    if (getpeername(fd, reinterpret_cast<sockaddr*>(&name), &bytes) == 0 &&
        name.ss_family == AF_INET) {
      found.insert(fd);
    }
  }
  return found;
}

// While nothing is sent to it, only the kernel asks.
TEST(TcpCommTest, AnIdleRankIsAskedWhetherItIsThere) {
  const std::set<int> before = ConnectedSockets();
  const auto comms = NewLocalTcpComms(2);
  int ends = 0;
  for (const int fd : ConnectedSockets()) {
    if (before.contains(fd)) continue;
    ++ends;
    const auto option = [fd](int level, int name) {
      int value = -1;
      socklen_t bytes = sizeof(value);
      EXPECT_EQ(getsockopt(fd, level, name, &value, &bytes), 0);
      return value;
    };
    EXPECT_EQ(option(SOL_SOCKET, SO_KEEPALIVE), 1);
    const int patience_s = option(IPPROTO_TCP, TCP_KEEPIDLE) +
                           option(IPPROTO_TCP, TCP_KEEPINTVL) * option(IPPROTO_TCP, TCP_KEEPCNT);
    EXPECT_EQ(patience_s, 25);
  }
  EXPECT_EQ(ends, 2);
}

// As a machine does that loses its power while something is on its way to it.
TEST(TcpCommTest, ARankThatVanishesIsMissed) {
  const TcpListener rank_0 = Listen();
  auto connecting = std::async(std::launch::async, [&] {
    return ConnectTcp(rank_0, {.addresses = {AddressOf(rank_0), "127.0.0.1:9"},
                               .timeout = Seconds(120),
                               .silence = Seconds(0.1)});
  });
  const int peer = RankOne(rank_0);
  const ConnectResult comm = connecting.get();
  ASSERT_TRUE(comm) << comm.error().message;
  if (!TellsOfDelivery(peer)) GTEST_SKIP();
  Vanish(peer);
  Bytes into(1);
  ExpectOk(SendAndWait(**comm, 1, 1, into));  // the kernel has it
  const Status status = ReceiveAndWait(**comm, 1, 1, into);
  ExpectCode(status, ErrorCode::kIo);
  EXPECT_THAT(status.error().message,
              HasSubstr("rank 1 at 127.0.0.1:9 is gone: it has acknowledged nothing for"));
  close(peer);
}

TEST(TcpCommTest, WhatAPeerHasSentBeforeItWentCanBeReceived) {
  auto comms = NewLocalTcpComms(2);
  const Bytes message = Pattern(1, 1000);
  Bytes into(1000);
  for (int tag : {1, 2}) ExpectOk(SendAndWait(*comms[0], 1, tag, message));
  comms[0].reset();
  ExpectOk(ReceiveAndWait(*comms[1], 0, 2, into));
  ExpectCode(ReceiveAndWait(*comms[1], 0, 3, into), ErrorCode::kIo);
  ExpectOk(ReceiveAndWait(*comms[1], 0, 1, into));
  EXPECT_EQ(into, message);
}

TEST(TcpCommTest, BeyondTheBoundReadingPausesAndGoesOn) {
  auto comms = NewLocalTcpComms(2, 1000);
  Comm &sender = *comms[0], &receiver = *comms[1];
  const Bytes large = Pattern(1, 20 << 20), small = Pattern(2, 500);
  Bytes into_large(large.size()), into_small(small.size());
  TransferWait sent, behind;
  sender.Send(1, 1, small, sent.Add(1));  // is kept aside
  ExpectOk(sent.Wait(Patience(), "a message that is kept aside"));
  sender.Send(1, 2, large, sent.Add(1));  // is not
  sender.Send(1, 3, small, sent.Add(1));
  receiver.Receive(0, 3, into_small, behind.Add(0));
  Bytes first(small.size());
  ExpectOk(ReceiveAndWait(receiver, 0, 1, first));
  EXPECT_FALSE(sent.Done()) << "more than any kernel's buffers";
  EXPECT_FALSE(behind.Done());
  ExpectOk(ReceiveAndWait(receiver, 0, 2, into_large));
  ExpectOk(behind.Wait(Patience(), "what was behind it"));
  ExpectOk(sent.Wait(Patience(), "all"));
  EXPECT_TRUE(into_large == large && first == small && into_small == small);
}

// However many messages have been aside before.
TEST(TcpCommTest, WhoTakesWhatIsAsideMakesRoomForMore) {
  auto comms = NewLocalTcpComms(2, 1000);
  const Bytes behind(1);
  Bytes none, into(1);
  for (int round = 0; round < 50; ++round) {
    TransferWait sent;
    comms[0]->Send(1, 1, none, sent.Add(1));
    comms[0]->Send(1, 2, behind, sent.Add(1));
    ASSERT_TRUE(ReceiveAndWait(*comms[1], 0, 2, into)) << "there is no room in round " << round;
    ASSERT_TRUE(ReceiveAndWait(*comms[1], 0, 1, none));
    ExpectOk(sent.Wait(Patience(), "sends"));
  }
}

// Messages of no bytes take memory, too.
TEST(TcpCommTest, EmptyMessagesAreKeptAsideWithinTheBound) {
  constexpr int kMessages = 200;
  auto comms = NewLocalTcpComms(2, 10'000);
  Bytes none, last(1);
  TransferWait sent, behind;
  comms[1]->Receive(0, kMessages, last, behind.Add(0));
  for (int tag = 0; tag < kMessages; ++tag) comms[0]->Send(1, tag, none, sent.Add(1));
  comms[0]->Send(1, kMessages, last, sent.Add(1));
  ExpectOk(sent.Wait(Patience(), "what the kernel has room for"));
  for (int tag = 0; tag < kMessages; ++tag) {
    if (tag < kMessages / 2) {
      EXPECT_FALSE(behind.Done()) << "what is aside goes beyond the bound";
    }
    ExpectOk(ReceiveAndWait(*comms[1], 0, tag, none));
  }
  ExpectOk(behind.Wait(Patience(), "what was behind them"));
}

}  // namespace
}  // namespace kvcake
