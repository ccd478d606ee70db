#include "server/http_server.h"

#include <gtest/gtest.h>

#include <csignal>

namespace kvcake {
namespace {

class Nobody : public HttpHandler {
 public:
  boost::asio::awaitable<void> Handle(const HttpRequest&, HttpReply&) override { co_return; }
  void Refused(const HttpRequest&, const ApiError&) override {}
};

// What comes after Run may take its time: a second signal ends that too.
TEST(HttpServerTest, SignalsAreTheProcesssAgainAfterTheDrain) {
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
    EXPECT_EQ(action.sa_handler, SIG_DFL);
  }
}

}  // namespace
}  // namespace kvcake
