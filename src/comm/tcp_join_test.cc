#include "comm/tcp_join.h"

#include <gmock/gmock.h>

#include <future>
#include <thread>

#include "comm/contract_testing.h"
#include "comm/handshake.h"
#include "comm/tcp_join_testing.h"

namespace kvcake {
namespace {

using namespace testing_util;
using boost::asio::ip::tcp;
using testing::HasSubstr;

void ExpectRanks(Comm& comm, int rank, int size) {
  EXPECT_EQ(comm.rank(), rank);
  EXPECT_EQ(comm.size(), size);
}

Status Meet(Comm& comm) {
  const Fact facts[] = {{"version", "1"}};
  return Handshake(comm, facts, Seconds(120));
}

TEST(TcpJoinTest, TheLeaderIsTheLastOfAll) {
  Waiting first, second;
  const std::vector<std::string> workers = {first.address(), second.address()};
  const auto leader = GatherWorkers(workers, {}, kPatient);
  ASSERT_TRUE(leader) << leader.error().message;
  const auto a = first.Joined(), b = second.Joined();
  ASSERT_TRUE(a) << a.error().message;
  ASSERT_TRUE(b) << b.error().message;
  ExpectRanks(**leader, 2, 3);
  ExpectRanks(*a->comm, 0, 3);
  ExpectRanks(*b->comm, 1, 3);
  EXPECT_THAT(a->leader, HasSubstr("127.0.0.1:"));
  auto met_a = std::async(std::launch::async, [&] { return Meet(*a->comm); });
  auto met_b = std::async(std::launch::async, [&] { return Meet(*b->comm); });
  EXPECT_TRUE(Meet(**leader));
  EXPECT_TRUE(met_a.get());
  EXPECT_TRUE(met_b.get());
}

TEST(TcpJoinTest, AWorkerHasOneLeaderAfterTheOther) {
  Waiting worker;
  for (int i = 0; i < 3; ++i) {
    const auto leader = GatherWorkers(std::vector{worker.address()}, {}, kPatient);
    ASSERT_TRUE(leader) << leader.error().message;
    const auto joined = worker.Joined();
    ASSERT_TRUE(joined) << joined.error().message;
    worker.Again();
  }
}

TEST(TcpJoinTest, StrangersHinderNobody) {
  Waiting worker;
  std::vector<std::unique_ptr<Caller>> silent;
  for (int i = 0; i < 8; ++i) silent.push_back(std::make_unique<Caller>(worker));
  for (const std::string& says :
       {std::string("GET / HTTP/1.1\r\nHost: x\r\n\r\n"), std::string("\n"),
        std::string(40 << 10, 'x'), std::string("kvcake-chain 1 0 127.0.0.1:1\n"),
        std::string("kvcake-chain 2\n"), std::string("kvcake-chain 2 x\n")}) {
    EXPECT_EQ(Caller(worker, says).Heard(), "") << says.substr(0, 40);
  }
  const auto leader = GatherWorkers(std::vector{worker.address()}, {}, kPatient);
  ASSERT_TRUE(leader) << leader.error().message;
  EXPECT_TRUE(worker.Joined());
}

// However long it would wait: what somebody says takes no more memory than a line may have.
TEST(TcpJoinTest, ALineThatDoesNotEndIsHungUpOn) {
  Waiting worker({.patience = Seconds(3600), .connect = Seconds(120)});
  EXPECT_EQ(Caller(worker, std::string(kGreetingBytesMax + 1, 'x')).Heard(), "");
  Caller greets(worker);
  ASSERT_TRUE(greets.Greet(kNoKey));
  greets.Say("call " + std::string(kCallBytesMax, 'x'));
  EXPECT_EQ(greets.Heard(), "");
  worker.Stop();

  boost::asio::io_context context;
  tcp::acceptor acceptor(context, {boost::asio::ip::address_v4::loopback(), 0});
  auto babbler = std::async(std::launch::async, [&] {
    tcp::socket socket = acceptor.accept();
    boost::system::error_code end;
    boost::asio::write(socket, boost::asio::buffer(std::string(kGreetingBytesMax + 1, 'x')), end);
    std::string heard;
    boost::asio::read(socket, boost::asio::dynamic_buffer(heard), end);
  });
  const std::string address = fmt::format("127.0.0.1:{}", acceptor.local_endpoint().port());
  const auto leader = GatherWorkers(std::vector{address}, {}, {.patience = Seconds(3600)});
  ASSERT_FALSE(leader);
  EXPECT_EQ(leader.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(leader.error().message, HasSubstr("no kvcake worker of this version"));
}

// However long it would wait for each of them.
TEST(TcpJoinTest, OfMoreSilentCallersThanItListensToTheOldestAreHungUpOn) {
  Waiting worker({.patience = Seconds(3600), .connect = Seconds(120)});
  std::vector<std::unique_ptr<Caller>> silent;
  for (int i = 0; i < 200; ++i) silent.push_back(std::make_unique<Caller>(worker));
  EXPECT_EQ(silent.front()->Heard(), "");
  const auto leader = GatherWorkers(std::vector{worker.address()}, {}, kPatient);
  ASSERT_TRUE(leader) << leader.error().message;
  EXPECT_TRUE(worker.Joined());
}

TEST(TcpJoinTest, SilentCallersAreHungUpOn) {
  Waiting worker({.patience = Seconds(5), .connect = Seconds(120)});
  EXPECT_EQ(Caller(worker).Heard(), "");
  Caller greets(worker);
  LeaderTalk talk{ClusterKey()};
  greets.Say(talk.Greeting());
  EXPECT_TRUE(talk.HearGreeting(greets.HeardLine()));
  EXPECT_EQ(greets.Heard(), "");
}

TEST(TcpJoinTest, ALeaderThatVanishesIsForgotten) {
  Waiting worker;
  {
    Caller gone(worker);
    EXPECT_EQ(gone.Call(kNoKey, {"127.0.0.1:1"}), LeaderTalk::Answer::kReady);
  }
  const auto leader = GatherWorkers(std::vector{worker.address()}, {}, kPatient);
  ASSERT_TRUE(leader) << leader.error().message;
  EXPECT_TRUE(worker.Joined());
}

TEST(TcpJoinTest, OfTwoLeadersTheFirstThatCallsHasTheWorker) {
  Waiting worker({.patience = Seconds(120), .connect = Seconds(0.2)});
  Caller first(worker), second(worker);
  ASSERT_TRUE(first.Greet(kNoKey));
  ASSERT_TRUE(second.Greet(kNoKey));
  EXPECT_EQ(first.GoOn({"127.0.0.1:1"}), LeaderTalk::Answer::kReady);
  EXPECT_EQ(second.GoOn({"127.0.0.1:1"}), LeaderTalk::Answer::kTaken);
  EXPECT_EQ(second.why(), "another leader has just called");
  first.Go();
  EXPECT_EQ(worker.Joined().error().code, ErrorCode::kDeadline) << "neither is one in truth";
}

// By two names that look up to different lists, say: asking again would be of no use.
TEST(TcpJoinTest, AWorkerThatOneLeaderCallsTwiceSaysSo) {
  Waiting worker;
  Caller first(worker), second(worker);
  ASSERT_TRUE(first.Greet(kNoKey));
  ASSERT_TRUE(second.Greet(kNoKey));
  second.SetChain(first.chain());
  const std::vector<std::string> roster = {"127.0.0.1:1", "127.0.0.2:1"};
  EXPECT_EQ(first.GoOn(roster, 0), LeaderTalk::Answer::kReady);
  EXPECT_EQ(second.GoOn(roster, 1), LeaderTalk::Answer::kRefused);
  EXPECT_EQ(second.why(),
            "the workers at 127.0.0.1:1 and 127.0.0.2:1 are one and the same: name each once");
  worker.Stop();
}

// Nobody who looks whether it lives is left waiting for ever.
TEST(TcpJoinTest, AWorkerThatIsTakenSaysSo) {
  Waiting worker;
  const auto call = [&] { return GatherWorkers(std::vector{worker.address()}, {}, kPatient); };
  const auto leader = call();
  ASSERT_TRUE(leader) << leader.error().message;
  const auto joined = worker.Joined();
  ASSERT_TRUE(joined) << joined.error().message;
  {
    const std::jthread declines([&](const std::stop_token& stop) {
      DeclineLeaders(worker.listener(), stop, kPatient, joined->leader);
    });
    for (int round = 0; round < 3; ++round) {
      EXPECT_EQ(Caller(worker, "GET / HTTP/1.1\r\n\r\n").Heard(), "");
      const auto other = call();
      ASSERT_FALSE(other);
      EXPECT_EQ(other.error().code, ErrorCode::kIo) << "it may be free later";
      EXPECT_THAT(other.error().message,
                  HasSubstr("it is taken: its leader called from " + joined->leader));
    }
    EXPECT_TRUE(SendAndWait(**leader, 0, 1, Bytes(1))) << "the chain is not concerned";
  }
  worker.Again();
  const auto next = call();
  EXPECT_TRUE(next) << next.error().message;
  EXPECT_TRUE(worker.Joined());
}

TEST(TcpJoinTest, ALeaderThatDoesNotGoOnIsAnError) {
  Waiting worker({.patience = Seconds(120), .connect = Seconds(0.2)});
  Caller leader(worker);
  EXPECT_EQ(leader.Call(kNoKey, {"127.0.0.1:1"}), LeaderTalk::Answer::kReady);
  leader.Go();
  const auto joined = worker.Joined();
  ASSERT_FALSE(joined);
  EXPECT_EQ(joined.error().code, ErrorCode::kDeadline);
}

TEST(TcpJoinTest, WorkersThatAreNotReadyAreNamed) {
  Waiting ready;
  const TcpListener busy = ListenLocally();
  std::string nobody;
  {
    const TcpListener closed = ListenLocally();
    nobody = fmt::format("127.0.0.1:{}", closed.port());
  }
  const std::string silent = fmt::format("127.0.0.1:{}", busy.port());
  const auto leader = GatherWorkers(std::vector{nobody, ready.address(), silent}, {},
                                    {.patience = Seconds(5), .connect = Seconds(120)});
  ASSERT_FALSE(leader);
  EXPECT_EQ(leader.error().code, ErrorCode::kIo);
  EXPECT_EQ(leader.error().message,
            "the worker at " + nobody + " is not ready: Connection refused; the worker at " +
                silent +
                " is not ready: it does not answer: it may be loading its model, or working for "
                "another server");
}

TEST(TcpJoinTest, SomethingElseThanAWorkerIsAMistake) {
  boost::asio::io_context context;
  tcp::acceptor acceptor(context, {boost::asio::ip::address_v4::loopback(), 0});
  auto other = std::async(std::launch::async, [&] {
    tcp::socket socket = acceptor.accept();
    boost::asio::write(socket, boost::asio::buffer(std::string("220 mail.example.org\r\n")));
    std::string heard;
    boost::system::error_code end;
    boost::asio::read(socket, boost::asio::dynamic_buffer(heard), end);
  });
  const std::string address = fmt::format("127.0.0.1:{}", acceptor.local_endpoint().port());
  const auto leader = GatherWorkers(std::vector{address}, {}, kPatient);
  ASSERT_FALSE(leader);
  EXPECT_EQ(leader.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(leader.error().message, HasSubstr(address));
  for (const char* bad : {"", "host", "a b:1", "127.0.0.1:"}) {
    const auto none = GatherWorkers(std::vector<std::string>{bad}, {}, kPatient);
    ASSERT_FALSE(none) << bad;
    EXPECT_EQ(none.error().code, ErrorCode::kInvalidArgument) << bad;
  }
}

TEST(TcpJoinTest, AWorkerThatIsNamedTwiceIsAMistake) {
  for (const char* again : {"127.0.0.1:7100", "127.1:7100"}) {
    const auto leader =
        GatherWorkers(std::vector<std::string>{"127.0.0.1:7100", again}, {}, kPatient);
    ASSERT_FALSE(leader);
    EXPECT_EQ(leader.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(leader.error().message, HasSubstr(std::string(again) + " are one and the same"));
  }
}

TEST(TcpJoinTest, WaitingEndsWhenItIsToldTo) {
  Waiting worker;
  Caller ready(worker);
  EXPECT_EQ(ready.Call(kNoKey, {"127.0.0.1:1"}), LeaderTalk::Answer::kReady);
  worker.Stop();
  const auto joined = worker.Joined();
  ASSERT_FALSE(joined);
  EXPECT_EQ(joined.error().code, ErrorCode::kCancelled);

  const TcpListener busy = ListenLocally();
  const std::string silent = fmt::format("127.0.0.1:{}", busy.port());
  std::stop_source stop;
  auto gathering = std::async(std::launch::async, [&] {
    return GatherWorkers(std::vector{silent}, stop.get_token(), kPatient);
  });
  stop.request_stop();
  const auto leader = gathering.get();
  ASSERT_FALSE(leader);
  EXPECT_EQ(leader.error().code, ErrorCode::kCancelled);
}

// Each waits for ranks that never come.
TEST(TcpJoinTest, ConnectingEndsWhenItIsToldTo) {
  Waiting worker;
  Caller leader(worker);
  EXPECT_EQ(leader.Call(kNoKey, {"127.0.0.1:1"}), LeaderTalk::Answer::kReady);
  leader.Go();
  EXPECT_EQ(leader.Heard(), "") << "it waits for the chain's connections now";
  worker.Stop();
  const auto joined = worker.Joined();
  ASSERT_FALSE(joined);
  EXPECT_EQ(joined.error().code, ErrorCode::kCancelled);

  boost::asio::io_context context;
  tcp::acceptor acceptor(context, {boost::asio::ip::address_v4::loopback(), 0});
  std::stop_source stop;
  auto ready = std::async(std::launch::async, [&] {
    tcp::socket socket = acceptor.accept();
    std::string text;
    WorkerTalk talk(kNoKey);
    EXPECT_TRUE(talk.HearGreeting(HeardLine(socket, &text)));
    boost::asio::write(socket, boost::asio::buffer(talk.Greeting()));
    bool proved = false;
    EXPECT_TRUE(talk.HearCall(HeardLine(socket, &text), &proved));
    boost::asio::write(socket, boost::asio::buffer(talk.Ready({})));
    EXPECT_TRUE(talk.HearGo(HeardLine(socket, &text)));
    const tcp::socket rank = acceptor.accept();  // to which nothing is said
    stop.request_stop();
    return proved;
  });
  const std::string address = fmt::format("127.0.0.1:{}", acceptor.local_endpoint().port());
  const auto gathered = GatherWorkers(std::vector{address}, stop.get_token(), kPatient);
  EXPECT_TRUE(ready.get());
  ASSERT_FALSE(gathered);
  EXPECT_EQ(gathered.error().code, ErrorCode::kCancelled);
}

}  // namespace
}  // namespace kvcake
