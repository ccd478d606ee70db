#include "server/http_api.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "server/demo_runtime_testing.h"

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

// An api whose engine runs when a test says so.
class HttpApiTest : public testing::Test {
 protected:
  ~HttpApiTest() override {
    traces_.reset();  // nothing more is written there
    std::filesystem::remove_all(traces_dir_);
  }

  void Handle(const HttpRequest& request, Client& client) {
    boost::asio::co_spawn(context_, api_.Handle(request, client), boost::asio::detached);
  }
  // Hands in a completion that has so many answers, and has the engine answer them to the end.
  void Complete(Client& client, size_t answers) {
    Handle(ask_, client);
    while (loop_.Stats().waiting < answers) ASSERT_GT(context_.run_one(), 0u);
    loop_.Stop();
    loop_.Run();
    context_.run();
  }
  std::string Scrape() {
    Client scraper;
    Handle(scrape_, scraper);
    context_.restart();
    context_.run();
    return scraper.answer.body;
  }

  const HttpRequest ask_{
      .method = "POST", .path = "/v1/completions", .content_type = "application/json"};
  const HttpRequest scrape_{.method = "GET", .path = "/metrics"};
  const std::unique_ptr<Runtime> runtime_ = testing_util::DemoRuntime();
  const std::string traces_dir_ = testing::TempDir() + "kvcake-api-" + std::to_string(getpid());
  std::unique_ptr<TraceFiles> traces_ = TraceFiles::Open(traces_dir_, 8).value();
  EngineLoop loop_{runtime_->engine(), runtime_->restorer(), {.jobs_max = 4}};
  boost::asio::io_context context_;
  HttpApi api_{context_,
               *runtime_,
               loop_,
               Fail(ErrorCode::kNotFound, "no template"),
               ApiKeys(),
               traces_.get(),
               {.requests = {.model_names = {"m"}, .model_len_max = 4096}, .version = "1"}};
};

// The engine may be done with what it takes before a connection hears of it.
TEST_F(HttpApiTest, AnAnswerThatHasEndedCountsWhereAnotherOfItsRequestIsRefused) {
  std::string body = R"({"stream": true, "max_tokens": 2, "prompt": [[5], [5)";
  for (int i = 0; i < 4000; ++i) body += ",5";
  Client client(body + "]]}");
  Complete(client, 2);
  EXPECT_EQ(client.answer.status, 400);
  EXPECT_THAT(client.answer.body, HasSubstr("--ram-capacity"));
  EXPECT_THAT(Scrape(), HasSubstr("kvcake_overhead_seconds_count{model_name=\"m\"} 1\n"));
}

TEST_F(HttpApiTest, EachAnswerOfARequestCountsForItsTenant) {
  Client client(R"({"max_tokens": 2, "ignore_eos": true, "n": 3, "prompt": [5, 6]})");
  Complete(client, 3);
  EXPECT_EQ(client.answer.status, 200);
  const std::string text = Scrape();
  const auto has = [&](const char* name, int value) {
    EXPECT_THAT(text, HasSubstr(fmt::format("\nkvcake_tenant_{}{{model_name=\"m\",tenant=\"-\"}} "
                                            "{}\n",
                                            name, value)));
  };
  has("answers_total", 3);
  has("generation_tokens_total", 6);
  has("prompt_tokens_total", 2);  // which the three have in common
}

TEST_F(HttpApiTest, WhatPlanningTookAndWhatItWaitedForAreApart) {
  Client client(R"({"max_tokens": 1, "prompt": [5, 6]})");
  Complete(client, 1);
  const RestorerStats before = runtime_->restorer().Stats();
  const std::string text = Scrape();
  const RestorerStats after = runtime_->restorer().Stats();
  const auto told = [&](const std::string& name) {
    const std::string line = "\n" + name + "{model_name=\"m\"} ";
    const size_t at = text.find(line);
    return at == text.npos ? -1.0 : std::stod(text.substr(at + line.size()));
  };
  EXPECT_GT(before.planning.count(), 0.0);
  EXPECT_GE(told("kvcake_planning_seconds_total"), before.planning.count());
  EXPECT_LE(told("kvcake_planning_seconds_total"), after.planning.count());
  EXPECT_GE(told("kvcake_planning_wait_seconds_total"), before.mutex_wait.count());
  EXPECT_LE(told("kvcake_planning_wait_seconds_total"), after.mutex_wait.count());
}

TEST_F(HttpApiTest, AStreamIsAResponse) {
  Client client(R"({"stream": true, "max_tokens": 2, "prompt": [5, 6]})");
  Complete(client, 1);
  EXPECT_EQ(client.answer.status, 200);
  EXPECT_THAT(Scrape(),
              HasSubstr("\nkvcake_http_responses_total{model_name=\"m\",status=\"200\"} 1\n"));
}

TEST_F(HttpApiTest, EachAnswerOfARequestHasATrace) {
  std::vector<std::vector<int>> prompts = {std::vector(300, 5), std::vector(300, 6)};
  Client client(nlohmann::json{{"max_tokens", 1}, {"prompt", prompts}}.dump());
  Complete(client, 2);
  ASSERT_EQ(client.answer.status, 200);
  traces_.reset();  // when all of them are written
  const std::string id = nlohmann::json::parse(client.answer.body)["id"];
  for (const char* const index : {"-0", "-1"}) {
    std::ifstream file(traces_dir_ + "/" + id + index + ".trace.json");
    const auto trace = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
    EXPECT_THAT(trace.dump(), HasSubstr("\"tokens\":\"[0, ")) << index;
  }
}

}  // namespace
}  // namespace kvcake
