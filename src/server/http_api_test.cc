#include "server/http_api.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/source_dir_testing.h"

namespace kvcake {
namespace {

using testing::HasSubstr;

// A client that sends one body and keeps the answer.
class Client : public HttpReply {
 public:
  explicit Client(std::string body = "") : body_(std::move(body)) {}
  boost::asio::awaitable<ApiResult<std::string>> ReadBody() override { co_return body_; }
  void BodyDropped() override {}
  boost::asio::awaitable<bool> Send(HttpResponse response) override {
    answer = std::move(response);
    co_return true;
  }
  boost::asio::awaitable<bool> StartStream(HttpResponse head) override {
    co_return co_await Send(std::move(head));
  }
  boost::asio::awaitable<bool> Write(std::string_view piece) override {
    answer.body += piece;
    co_return true;
  }
  boost::asio::awaitable<bool> EndStream() override { co_return true; }
  void WatchClient(std::shared_ptr<Signal>) override {}
  bool client_gone() override { return false; }
  uint64_t sent_bytes() const override { return answer.body.size(); }

  HttpResponse answer;

 private:
  const std::string body_;
};

// The engine may be done with what it takes before a connection hears of it.
TEST(HttpApiTest, AnAnswerThatHasEndedCountsWhereAnotherOfItsRequestIsRefused) {
  const auto runtime = Runtime::Create({.model_dir = SourceDir() + "/models/demo",
                                        .ram_capacity_bytes = 8 << 20,
                                        .threads = 1,
                                        .keep_costs = false})
                           .value();
  EngineLoop loop(runtime->engine(), runtime->restorer(), {.jobs_max = 2});
  boost::asio::io_context context;
  HttpApi api(context, *runtime, loop, Fail(ErrorCode::kNotFound, "no template"), ApiKeys(),
              nullptr, {.requests = {.model_names = {"m"}, .model_len_max = 4096}, .version = "1"});
  const auto handle = [&](const HttpRequest& request, Client& client) {
    boost::asio::co_spawn(context, api.Handle(request, client), boost::asio::detached);
  };
  std::string body = R"({"stream": true, "max_tokens": 2, "prompt": [[5], [5)";
  for (int i = 0; i < 4000; ++i) body += ",5";
  Client client(body + "]]}");
  const HttpRequest ask{
      .method = "POST", .path = "/v1/completions", .content_type = "application/json"};
  handle(ask, client);
  while (loop.Stats().waiting < 2) ASSERT_GT(context.run_one(), 0u);
  loop.Stop();
  loop.Run();  // to the end of both
  context.run();
  EXPECT_EQ(client.answer.status, 400);
  EXPECT_THAT(client.answer.body, HasSubstr("--ram-capacity"));

  Client scraper;
  const HttpRequest scrape{.method = "GET", .path = "/metrics"};
  handle(scrape, scraper);
  context.restart();
  context.run();
  EXPECT_THAT(scraper.answer.body,
              HasSubstr("kvcake_overhead_seconds_count{model_name=\"m\"} 1\n"));
}

}  // namespace
}  // namespace kvcake
