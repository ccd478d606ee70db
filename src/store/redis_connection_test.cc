#include "store/redis_connection.h"

#include <gmock/gmock.h>

#include <cstring>

#include "store/redis_server_testing.h"

namespace kvcake {
namespace {

using testing::HasSubstr;

std::span<const std::byte> Bytes(std::string_view text) { return std::as_bytes(std::span(text)); }

class RedisConnectionTest : public testing::Test {
 protected:
  ~RedisConnectionTest() override {
    if (!ended_) connection_->Close();
    context_.run();
    EXPECT_TRUE(ended_);
  }

  void Connect(const RedisAddress& address, RedisConnectionOptions options = {}) {
    connection_ = std::make_shared<RedisConnection>(context_, std::move(options),
                                                    [this](const Error& error) { ended_ = error; });
    connection_->Start(address);
  }
  // Sends a command and runs until it is done.
  Result<RespReply> Ask(RedisCommand command) {
    std::optional<Result<RespReply>> answer;
    command.done = [&](Result<RespReply> reply) { answer = std::move(reply); };
    connection_->Send(std::move(command));
    while (!answer) context_.run_one();
    return *answer;
  }
  Result<RespReply> Ask(std::initializer_list<std::string> words) {
    return Ask(RedisCommand{.words = words});
  }

  boost::asio::io_context context_;
  std::shared_ptr<RedisConnection> connection_;
  std::optional<Error> ended_;
};

TEST_F(RedisConnectionTest, AValueGoesInPiecesAndComesIntoItsLanding) {
  const RedisServer server;
  Connect({"127.0.0.1", server.port()});
  const std::string header = "head", body(5 << 20, 'b');
  const auto set = Ask(RedisCommand{.words = {"SET", "key"},
                                    .value = {Bytes(header), Bytes(body)},
                                    .words_behind = {"PX", "60000"}});
  ASSERT_TRUE(set) << set.error().message;
  EXPECT_TRUE(set->IsText("OK")) << set->text;
  std::vector<std::byte> landing(header.size() + body.size());
  const auto got = Ask(RedisCommand{.words = {"GET", "key"}, .landing = landing});
  ASSERT_TRUE(got);
  EXPECT_TRUE(got->landed);
  EXPECT_EQ(std::memcmp(landing.data(), "headbbbb", 8), 0);
  EXPECT_EQ(landing.back(), std::byte{'b'});
  EXPECT_EQ(Ask({"GETRANGE", "key", "2", "5"})->text, "adbb");
  EXPECT_EQ(Ask({"GET", "none"})->kind, RespReply::Kind::kNil);
  EXPECT_EQ(Ask({"NOSUCH"})->ErrorWord(), "ERR");
}

TEST_F(RedisConnectionTest, RepliesComeInTheOrderOfManyCommands) {
  const RedisServer server;
  Connect({"127.0.0.1", server.port()});
  std::vector<int64_t> counts;
  for (int i = 0; i < 1000; ++i) {
    connection_->Send({.words = {"INCR", "n"}, .done = [&](Result<RespReply> reply) {
                         counts.push_back(reply ? reply->integer : -1);
                       }});
  }
  EXPECT_TRUE(counts.empty()) << "never from within Send";
  EXPECT_EQ(connection_->pending(), 1000u);
  while (counts.size() < 1000) context_.run_one();
  for (int i = 0; i < 1000; ++i) ASSERT_EQ(counts[i], i + 1);
  EXPECT_EQ(connection_->pending(), 0u);
}

// What is sent along with the password would be done in another database.
TEST_F(RedisConnectionTest, NothingIsAskedBeforeTheDatabaseIsChosen) {
  const RedisServer server({"--requirepass", "secret"});
  Connect({"127.0.0.1", server.port()}, {.login = {"", "secret"}, .database = 1});
  EXPECT_THAT(Ask({"CLIENT", "LIST"})->text, HasSubstr(" db=1 "));
}

TEST_F(RedisConnectionTest, WhatIsLargeMayTakeLongerToBeAnswered) {
  RedisServer server;
  Connect(
      {"127.0.0.1", server.port()},
      {.stall_timeout = Seconds(3600), .reply_timeout = Seconds(0.05), .slowest_bytes_per_s = 1});
  const std::string value(1000, 'v');
  ASSERT_TRUE(Ask(RedisCommand{.words = {"SET", "key"}, .value = {Bytes(value)}}));
  server.Pause();
  std::vector<std::byte> landing(1000);
  std::optional<bool> landed;
  connection_->Send({.words = {"GET", "key"}, .landing = landing, .done = [&](auto reply) {
                       landed = reply && reply->landed;
                     }});
  context_.run_for(std::chrono::milliseconds(300));
  EXPECT_FALSE(landed);
  server.Resume();
  while (!landed) context_.run_one();
  EXPECT_TRUE(*landed);
  EXPECT_EQ(connection_->pending_bytes(), 0u);
}

TEST_F(RedisConnectionTest, AServerThatIsKilledEndsWhatIsPending) {
  RedisServer server;
  Connect({"127.0.0.1", server.port()});
  ASSERT_TRUE(Ask({"PING"}));
  server.Pause();
  std::vector<ErrorCode> codes;
  std::vector<std::byte> landing(100);
  for (int i = 0; i < 3; ++i) {
    connection_->Send({.words = {"GET", "x"}, .landing = landing, .done = [&](auto reply) {
                         ASSERT_FALSE(reply);
                         codes.push_back(reply.error().code);
                       }});
  }
  server.Kill();
  while (!ended_) context_.run_one();
  EXPECT_EQ(codes, std::vector<ErrorCode>(3, ErrorCode::kIo));
  EXPECT_EQ(ended_->code, ErrorCode::kIo);
  EXPECT_TRUE(connection_->is_ending());
}

TEST_F(RedisConnectionTest, AServerThatFallsSilentIsGivenUp) {
  RedisServer server;
  server.Pause();  // the kernel goes on to accept
  Connect({"127.0.0.1", server.port()}, {.stall_timeout = Seconds(0.1)});
  const auto reply = Ask({"PING"});
  ASSERT_FALSE(reply);
  EXPECT_EQ(reply.error().code, ErrorCode::kDeadline);
  EXPECT_THAT(reply.error().message, HasSubstr(std::to_string(server.port())));
  while (!ended_) context_.run_one();
}

// What the kernel takes from this end says nothing of the other.
TEST_F(RedisConnectionTest, AServerThatFallsSilentIsGivenUpWhileMoreIsAskedOfIt) {
  RedisServer server;
  Connect({"127.0.0.1", server.port()},
          {.stall_timeout = Seconds(3), .reply_timeout = Seconds(3600)});
  ASSERT_TRUE(Ask({"PING"}));
  server.Pause();
  boost::asio::steady_timer timer(context_);
  std::optional<ErrorCode> code;
  const std::function<void()> ask = [&] {
    if (connection_->is_ending()) return;
    connection_->Send({.words = {"PING"}, .done = [&](auto reply) {
                         if (!reply && !code) code = reply.error().code;
                       }});
    timer.expires_after(std::chrono::milliseconds(20));
    timer.async_wait([&](auto error) {
      if (!error) ask();
    });
  };
  ask();
  while (!ended_) context_.run_one();
  context_.run();  // until the timer has called for the last time, while what it asks with is there
  EXPECT_EQ(code, ErrorCode::kDeadline);
  EXPECT_THAT(ended_->message, HasSubstr("silent"));
}

// Not Redis: says what a test wants as soon as something has come, and reads no more.
class Impostor {
 public:
  using Tcp = boost::asio::ip::tcp;

  Impostor(boost::asio::io_context& context, std::string first, Seconds between = Seconds(0))
      : acceptor_(context, {boost::asio::ip::address_v4::loopback(), 0}),
        timer_(context),
        text_(std::move(first)),
        between_(between) {
    acceptor_.async_accept([this](auto error, Tcp::socket socket) {
      if (error) return;
      socket_.emplace(std::move(socket));
      socket_->async_read_some(boost::asio::buffer(some_), [this](auto failed, size_t) {
        if (!failed) Say();
      });
    });
  }
  RedisAddress address() const { return {"127.0.0.1", acceptor_.local_endpoint().port()}; }
  void Close() {
    acceptor_.close();
    timer_.cancel();
    if (socket_) socket_->close();
    between_ = Seconds(0);
  }

 private:
  void Say() {
    boost::system::error_code error;
    boost::asio::write(*socket_, boost::asio::buffer(text_), error);
    if (error || between_.count() == 0) return;
    timer_.expires_after(std::chrono::duration_cast<std::chrono::steady_clock::duration>(between_));
    timer_.async_wait([this](auto failed) {
      if (!failed && socket_->is_open()) Say();
    });
  }

  Tcp::acceptor acceptor_;
  boost::asio::steady_timer timer_;
  std::optional<Tcp::socket> socket_;
  std::string text_;
  Seconds between_;
  char some_[16];
};

// The value is the connection's as long as it is being written, whatever the server says.
TEST_F(RedisConnectionTest, AReplyBeforeTheCommandHasGoneLetsGoOfNoValue) {
  Impostor server(context_, "-ERR too long\r\n");
  Connect(server.address(), {.stall_timeout = Seconds(0.1)});
  const std::string value(64 << 20, 'v');  // more than any socket takes
  const auto reply = Ask(RedisCommand{.words = {"SET", "key"}, .value = {Bytes(value)}});
  ASSERT_FALSE(reply) << "it was answered while it was being written";
  EXPECT_EQ(reply.error().code, ErrorCode::kDeadline);
  EXPECT_EQ(connection_->pending(), 0u);
  server.Close();
}

TEST_F(RedisConnectionTest, AServerThatAnswersAByteAtATimeIsGivenUp) {
  Impostor server(context_, "+", Seconds(0.01));
  Connect(server.address(), {.stall_timeout = Seconds(3600), .reply_timeout = Seconds(0.3)});
  const auto reply = Ask({"PING"});
  ASSERT_FALSE(reply);
  EXPECT_EQ(reply.error().code, ErrorCode::kDeadline);
  EXPECT_THAT(reply.error().message, HasSubstr("a byte at a time"));
  server.Close();
}

// As a proxy does: chunks that were asked for meanwhile are as good as before.
TEST_F(RedisConnectionTest, WhatIsNoReplySaysNothingOfValues) {
  for (const char* const text : {"HTTP/1.1 502 Bad Gateway\r\n", "$1\r\nabcd\r\n", "*-2\r\n"}) {
    context_.restart();
    ended_.reset();
    Impostor server(context_, text);
    Connect(server.address());
    std::vector<std::byte> landing(1);
    const auto reply = Ask(RedisCommand{.words = {"GET", "key"}, .landing = landing});
    ASSERT_FALSE(reply) << text;
    EXPECT_EQ(reply.error().code, ErrorCode::kIo) << text;
    while (!ended_) context_.run_one();
    server.Close();
  }
}

TEST_F(RedisConnectionTest, NobodyThereIsAnError) {
  uint16_t port = 0;
  {
    const RedisServer server;
    port = server.port();
  }
  Connect({"127.0.0.1", port});
  const auto reply = Ask({"PING"});
  ASSERT_FALSE(reply);
  EXPECT_EQ(reply.error().code, ErrorCode::kIo);
  EXPECT_THAT(reply.error().message, HasSubstr("cannot connect to 127.0.0.1"));
}

TEST_F(RedisConnectionTest, PasswordsAreSentAndWrongOnesSaid) {
  const RedisServer server(
      {"--requirepass", "secret", "--user", "kv", "on", ">word", "~*", "+@all"});
  Connect({"127.0.0.1", server.port()}, {.login = {.password = "secret"}});
  EXPECT_TRUE(Ask({"PING"})->IsText("PONG"));
  connection_->Close();
  while (!ended_) context_.run_one();
  ended_.reset();
  Connect({"127.0.0.1", server.port()}, {.login = {.user = "kv", .password = "word"}});
  EXPECT_EQ(Ask({"ACL", "WHOAMI"})->text, "kv");
  connection_->Close();
  while (!ended_) context_.run_one();
  ended_.reset();
  Connect({"127.0.0.1", server.port()}, {.login = {.password = "wrong"}});
  const auto reply = Ask({"PING"});
  ASSERT_FALSE(reply);
  EXPECT_EQ(reply.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(reply.error().message, HasSubstr("WRONGPASS"));
  EXPECT_THAT(reply.error().message, testing::Not(HasSubstr("wrong")));
}

// It says so before it has read who comes, as if to the login.
TEST_F(RedisConnectionTest, AServerThatHasTooManyClientsRefusesNoPassword) {
  const RedisServer server({"--requirepass", "secret", "--maxclients", "1"});
  boost::asio::ip::tcp::socket first(context_);
  first.connect({boost::asio::ip::address_v4::loopback(), server.port()});
  boost::asio::write(first, boost::asio::buffer("PING\r\n", 6));
  char some[16];
  first.read_some(boost::asio::buffer(some));  // it is one of its clients now
  Connect({"127.0.0.1", server.port()}, {.login = {.password = "secret"}});
  const auto reply = Ask({"PING"});
  ASSERT_FALSE(reply);
  EXPECT_EQ(reply.error().code, ErrorCode::kIo);
  EXPECT_THAT(reply.error().message, HasSubstr("maxclients"));
}

TEST_F(RedisConnectionTest, CloseCancelsWhatIsPending) {
  const RedisServer server;
  Connect({"127.0.0.1", server.port()});
  std::optional<ErrorCode> code;
  connection_->Send({.words = {"PING"}, .done = [&](auto reply) { code = reply.error().code; }});
  connection_->Close();
  EXPECT_FALSE(code) << "never from within Close";
  while (!ended_) context_.run_one();
  EXPECT_EQ(code, ErrorCode::kCancelled);
}

}  // namespace
}  // namespace kvcake
