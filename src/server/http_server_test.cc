#include "server/http_server.h"

#include <gtest/gtest.h>

#include <csignal>

namespace kvcake {
namespace {

class Nobody : public HttpHandler {
 public:
  boost::asio::awaitable<void> Handle(const HttpRequest&, HttpReply&) override { co_return; }
  void Refused(const HttpRequest&, const ApiError&, uint64_t) override {}
};

TEST(HttpServerTest, AClientIsAnAddressOrASitesNetwork) {
  const auto key = [](const char* address) {
    return ClientKey(boost::asio::ip::make_address(address));
  };
  EXPECT_EQ(key("192.0.2.7"), "192.0.2.7");
  EXPECT_EQ(key("::ffff:192.0.2.7"), "192.0.2.7");
  EXPECT_EQ(key("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::");
  EXPECT_EQ(key("2001:db8:1:2::9"), "2001:db8:1:2::");
  EXPECT_NE(key("2001:db8:1:3::9"), "2001:db8:1:2::");
}

TEST(SignalBatchTest, WhoIsFirstIsWokenBeforeThoseWhoWereAddedEarlier) {
  boost::asio::io_context context;
  std::string woken;
  const auto wait = [&](char name) {
    const auto signal = std::make_shared<Signal>(context);
    const auto body = [&woken, name, signal]() -> boost::asio::awaitable<void> {
      co_await signal->Wait();
      woken += name;
    };
    boost::asio::co_spawn(context, body, boost::asio::detached);
    return signal;
  };
  const auto other = wait('b'), first = wait('a');
  context.poll();
  SignalBatch batch(context);
  batch.Add(other, /*first=*/false);
  batch.Add(first, /*first=*/true);
  batch.Notify();
  context.restart();
  context.run();
  EXPECT_EQ(woken, "ab");
}

// As timeout(1) does: to the process, and to its group.
TEST(HttpServerTest, SigtermTwiceAtOnceIsOne) {
  boost::asio::io_context context;
  HttpServer server(context, {.port = 0});
  ASSERT_TRUE(server.Listen());
  Nobody nobody;
  boost::asio::post(context, [] {
    std::raise(SIGTERM);
    std::raise(SIGTERM);
  });
  server.Run(nobody, {});  // returns
}

// What comes after Run may take its time: SIGINT ends that too.
TEST(HttpServerTest, SigintIsTheProcesssAgainAfterTheDrainAndSigtermIsNot) {
  boost::asio::io_context context;
  HttpServer server(context, {.port = 0});
  ASSERT_TRUE(server.Listen());
  Nobody nobody;
  boost::asio::post(context, [] { std::raise(SIGTERM); });
  bool drained = false;
  server.Run(nobody, {.on_drain = [&] { drained = true; }});
  EXPECT_TRUE(drained);
  for (const int signal : {SIGTERM, SIGINT}) {
    struct sigaction action = {};
    ASSERT_EQ(sigaction(signal, nullptr, &action), 0);
    EXPECT_EQ(action.sa_handler == SIG_DFL, signal == SIGINT);
  }
}

}  // namespace
}  // namespace kvcake
