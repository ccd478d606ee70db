#include "server/request_log.h"

#include <gtest/gtest.h>
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>

#include <sstream>

namespace kvcake {
namespace {

using nlohmann::ordered_json;

RequestRecord Answered(FinishReason reason) {
  RequestRecord record{.client = "192.0.2.7",
                       .request_id = "req-1",
                       .method = "POST",
                       .path = "/v1/completions",
                       .id = "cmpl-1",
                       .tenant = "ann",
                       .status = 200,
                       .received_bytes = 1234,
                       .sent_bytes = 567,
                       .total_s = 2};
  Completion completion{.tokens = {1, 2, 3},
                        .finish_reason = reason,
                        .queue_s = 0.25,
                        .restore_s = 0.125,
                        .ttft_s = 0.5,
                        .decode_s = 0.75,
                        .steps_s = 1.5,
                        .preemptions = 4};
  completion.report.prompt_tokens = 300;
  completion.report.tokens_computed = 108;
  completion.report.chunks_failed = 5;
  completion.report.tokens_reused = 128;
  completion.report.tokens_loaded["disk"] = 64;
  completion.report.efficiency = 0.75;
  record.completion = std::move(completion);
  return record;
}

TEST(RequestLogTest, AnAnswerHasTimesAndItsRestoration) {
  const ordered_json line = RequestJson(Answered(FinishReason::kStop));
  EXPECT_EQ(line["request"], "cmpl-1");
  EXPECT_EQ(line["client"], "192.0.2.7");
  EXPECT_EQ(line["request_id"], "req-1");
  EXPECT_EQ(line["method"], "POST");
  EXPECT_EQ(line["path"], "/v1/completions");
  EXPECT_EQ(line["status"], 200);
  EXPECT_EQ(line["received_bytes"], 1234);
  EXPECT_EQ(line["sent_bytes"], 567);
  EXPECT_EQ(line["tenant"], "ann");
  EXPECT_EQ(line["finish_reason"], "stop");
  EXPECT_EQ(line["queue_s"], 0.25);
  EXPECT_EQ(line["restore_s"], 0.125);
  EXPECT_EQ(line["ttft_s"], 0.5);
  EXPECT_EQ(line["decode_s"], 0.75);
  EXPECT_EQ(line["steps_s"], 1.5);
  EXPECT_EQ(line["total_s"], 2.0);
  EXPECT_EQ(line["preemptions"], 4);
  EXPECT_EQ(line["prompt_tokens"], 300);
  EXPECT_EQ(line["cached_tokens"], 192);
  EXPECT_EQ(line["answer_tokens"], 3);
  EXPECT_EQ(line["tokens_computed"], 108);
  EXPECT_EQ(line["tokens_reused"], 128);
  EXPECT_EQ(line["chunks_failed"], 5);
  EXPECT_EQ(line["tokens_loaded"]["disk"], 64);
  EXPECT_EQ(line["efficiency"], 0.75);
  EXPECT_FALSE(line.contains("error"));
  EXPECT_EQ(RequestText(Answered(FinishReason::kStop)),
            "192.0.2.7 req-1 POST /v1/completions 200: cmpl-1: 300 prompt tokens (192 cached), 3 "
            "answered, queue 0.250 s, restore 0.125 s, first token 0.500 s, decode 0.750 s, stop; "
            "1234 B in, 567 B out, 2.000 s");
}

TEST(RequestLogTest, SeveralAnswersHaveNoEfficiencyInCommon) {
  RequestRecord record = Answered(FinishReason::kStop);
  EXPECT_FALSE(RequestJson(record).contains("choices"));
  record.choices = 3;
  EXPECT_EQ(RequestJson(record)["choices"], 3);
  EXPECT_NE(RequestText(record).find("3 answered in 3 answers, queue"), std::string::npos);
  EXPECT_FALSE(RequestJson(record).contains("efficiency"));
}

TEST(RequestLogTest, APromptOfSeveralRanksSaysWhatEachDid) {
  RequestRecord record = Answered(FinishReason::kStop);
  EXPECT_FALSE(RequestJson(record).contains("chain"));
  EXPECT_EQ(RequestText(record).find("ranks"), std::string::npos);
  ChainReport& chain = record.completion->chain.emplace();
  chain.job.origin = 128;
  chain.job.partition.bounds = {0, 100, 172};
  chain.ranks = {{.compute_s = 0.5}, {.compute_s = 0.25, .wait_s = 0.125}};
  const ordered_json line = RequestJson(record)["chain"];
  EXPECT_EQ(line["origin"], 128);
  EXPECT_EQ(line["bounds"], (ordered_json{0, 100, 172}));
  EXPECT_EQ(line["ranks"].size(), 2u);
  EXPECT_EQ(line["ranks"][1]["wait_s"], 0.125);
  EXPECT_NE(RequestText(record).find("(192 cached, by 2 ranks)"), std::string::npos);
}

TEST(RequestLogTest, ARefusalSaysWhyAndHasNoTimesOfTheEngine) {
  const RequestRecord record{
      .path = "/v1/completions",
      .id = "cmpl-2",
      .status = 429,
      .error = ApiError{.status = 429, .message = "full", .param = "n", .code = "queue_full"}};
  const ordered_json line = RequestJson(record);
  EXPECT_EQ(line["finish_reason"], "refused");
  EXPECT_EQ(line["status"], 429);
  EXPECT_EQ(line["error"],
            (ordered_json{{"message", "full"}, {"param", "n"}, {"code", "queue_full"}}));
  EXPECT_EQ(line.value("tenant", "none"), "");  // nobody's, as there are no keys
  EXPECT_FALSE(line.contains("ttft_s"));
  EXPECT_NE(RequestText(record).find("429: full; refused; 0 B in"), std::string::npos);
}

TEST(RequestLogTest, WhatAClientWroteStaysInItsLine) {
  const RequestRecord record{
      .request_id = "req-3",
      .path =
          "/\x9b"
          "2J\xc2\x9b" +
          std::string(10000, 'x'),
      .status = 404,
      .error = ApiError{.status = 404, .message = "no \"a\nb\r\t\x1b[2J\x7f é\""}};
  const std::string text = RequestText(record);
  EXPECT_NE(text.find(R"(no "a\x0ab\x0d\x09\x1b[2J\x7f é";)"), std::string::npos) << text;
  EXPECT_EQ(text.find(R"(- req-3 - /\x9b2J\x9bxxx)"), 0u) << text;
  EXPECT_LT(text.size(), 700u);
}

TEST(RequestLogTest, WhatTheEngineWasNotAskedHasNoEnd) {
  const RequestRecord record{
      .client = "192.0.2.7", .method = "POST", .path = "/tokenize", .status = 200};
  EXPECT_FALSE(RequestJson(record).contains("finish_reason"));
  EXPECT_FALSE(RequestJson(record).contains("request"));
  EXPECT_FALSE(RequestJson(record).contains("tenant"));
  EXPECT_EQ(RequestText(record), "192.0.2.7 - POST /tokenize 200: 0 B in, 0 B out, 0.000 s");
}

TEST(RequestLogTest, WhatTheEngineWasNotAskedWasSomebodys) {
  const RequestRecord record{.path = "/tokenize", .tenant = "ann", .status = 200};
  EXPECT_EQ(RequestJson(record)["tenant"], "ann");
}

TEST(RequestLogTest, WhatWasCancelledHasBoth) {
  RequestRecord record = Answered(FinishReason::kCancelled);
  record.error = ApiError{.status = 499, .message = "the client has gone"};
  const ordered_json line = RequestJson(record);
  EXPECT_EQ(line["finish_reason"], "cancelled");
  EXPECT_EQ(line["error"]["message"], "the client has gone");
  EXPECT_EQ(line["answer_tokens"], 3);
  EXPECT_EQ(line["ttft_s"], 0.5);
}

// A probe asks every few seconds: what it is told is for it to act upon, not for the log.
TEST(RequestLogTest, ProbesAreLoggedWhereSomethingIsWrong) {
  const std::shared_ptr<spdlog::logger> before = spdlog::default_logger();
  const auto level = [](const char* path, int status, const char* code = "",
                        const char* method = "GET") {
    RequestRecord record{.method = method, .path = path, .status = status};
    if (status != 200) record.error = ApiError{.status = status, .code = code};
    std::ostringstream text;
    const auto logger = std::make_shared<spdlog::logger>(
        "test", std::make_shared<spdlog::sinks::ostream_sink_mt>(text));
    logger->set_pattern("%l\n");
    logger->set_level(spdlog::level::debug);
    spdlog::set_default_logger(logger);
    LogRequest(record, /*json=*/false);
    return text.str().substr(0, text.str().find('\n'));
  };
  EXPECT_EQ(level("/ready", 200), "debug");
  EXPECT_EQ(level("/health", 200), "debug");
  EXPECT_EQ(level("/metrics", 200), "debug");
  EXPECT_EQ(level("/ready", 503, "loading"), "debug");
  EXPECT_EQ(level("/ready", 503), "debug");  // it shuts down
  EXPECT_EQ(level("/ready", 503, "engine_stuck"), "warning");
  EXPECT_EQ(level("/health", 503, "engine_stuck"), "warning");
  EXPECT_EQ(level("/v1/models", 503, "loading"), "warning");
  EXPECT_EQ(level("/v1/models", 200), "info");
  EXPECT_EQ(level("/healthz", 404), "info");
  EXPECT_EQ(level("/ready", 200, "", "HEAD"), "debug");
  EXPECT_EQ(level("/ready", 200, "", "POST"), "info");
  EXPECT_EQ(level("/v1/completions", 499), "info");
  EXPECT_EQ(level("/v1/completions", 500), "warning");
  spdlog::set_default_logger(before);
}

}  // namespace
}  // namespace kvcake
