#include "comm/tcp_join.h"

#include <gmock/gmock.h>
#include <sys/socket.h>
#include <unistd.h>

#include <future>
#include <optional>

#include "base/check.h"
#include "comm/asio.h"
#include "comm/handshake.h"

namespace kvcake {
namespace {

using boost::asio::ip::tcp;
using testing::AnyOf;
using testing::HasSubstr;

// Where nothing is to time out, however busy the machine is.
constexpr JoinOptions kPatient{.patience = Seconds(120), .connect = Seconds(120)};

TcpListener ListenLocally() {
  auto listener = TcpListener::Open("127.0.0.1:0");
  CHECK(listener.has_value());
  return std::move(*listener);
}

// A worker on a thread of its own.
class Waiting {
 public:
  explicit Waiting(JoinOptions options = kPatient) : options_(options) { Again(); }
  ~Waiting() { stop_.request_stop(); }

  std::string address() const { return fmt::format("127.0.0.1:{}", listener_.port()); }
  uint16_t port() const { return listener_.port(); }
  void Stop() { stop_.request_stop(); }
  // What the wait came to; once.
  Result<JoinedChain> Joined() { return joined_.get(); }
  void Again() {
    joined_ = std::async(std::launch::async,
                         [this] { return AwaitLeader(listener_, stop_.get_token(), options_); });
  }

 private:
  const JoinOptions options_;
  const TcpListener listener_ = ListenLocally();
  std::stop_source stop_;
  std::future<Result<JoinedChain>> joined_;
};

class Caller {
 public:
  explicit Caller(const Waiting& worker, const std::string& says = "") : socket_(context_) {
    socket_.connect({boost::asio::ip::address_v4::loopback(), worker.port()});
    boost::system::error_code closed;  // may come before all is said
    boost::asio::write(socket_, boost::asio::buffer(says), closed);
  }
  // What comes before the other side closes.
  std::string Heard() {
    std::string heard;
    boost::system::error_code end;
    boost::asio::read(socket_, boost::asio::dynamic_buffer(heard), end);
    return heard;
  }
  std::string HeardLine() {
    std::string heard;
    boost::asio::read_until(socket_, boost::asio::dynamic_buffer(heard), '\n');
    return heard;
  }

 private:
  boost::asio::io_context context_;
  tcp::socket socket_;
};

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
        std::string(40 << 10, 'x'), std::string("kvcake-chain 2 0 127.0.0.1:1\n"),
        std::string("kvcake-chain 1 1 127.0.0.1:1\n"), std::string("kvcake-chain 1 -1 a:1\n"),
        std::string("kvcake-chain 1 0\n"), std::string("kvcake-chain 1 x a:1\n")}) {
    EXPECT_EQ(Caller(worker, says).Heard(), "") << says.substr(0, 40);
  }
  const auto leader = GatherWorkers(std::vector{worker.address()}, {}, kPatient);
  ASSERT_TRUE(leader) << leader.error().message;
  EXPECT_TRUE(worker.Joined());
}

TEST(TcpJoinTest, MoreSilentCallersThanItListensToAreHungUpOn) {
  Waiting worker({.patience = Seconds(0.2), .connect = Seconds(120)});
  std::vector<std::unique_ptr<Caller>> silent;
  for (int i = 0; i < 40; ++i) silent.push_back(std::make_unique<Caller>(worker));
  const auto leader = GatherWorkers(std::vector{worker.address()}, {}, kPatient);
  ASSERT_TRUE(leader) << leader.error().message;
  EXPECT_TRUE(worker.Joined());
}

TEST(TcpJoinTest, ALeaderThatVanishesIsForgotten) {
  Waiting worker;
  {
    Caller gone(worker, "kvcake-chain 1 0 127.0.0.1:1\n");
    EXPECT_EQ(gone.HeardLine(), "ready\n");
  }
  const auto leader = GatherWorkers(std::vector{worker.address()}, {}, kPatient);
  ASSERT_TRUE(leader) << leader.error().message;
  EXPECT_TRUE(worker.Joined());
}

TEST(TcpJoinTest, ALeaderThatDoesNotGoOnIsAnError) {
  Waiting worker({.patience = Seconds(120), .connect = Seconds(0.2)});
  Caller leader(worker, "kvcake-chain 1 0 127.0.0.1:1\ngo\n");
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
                                    {.patience = Seconds(0.2), .connect = Seconds(120)});
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

TEST(TcpJoinTest, WaitingEndsWhenItIsToldTo) {
  Waiting worker;
  const Caller ready(worker, "kvcake-chain 1 0 127.0.0.1:1\n");
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

}  // namespace
}  // namespace kvcake
