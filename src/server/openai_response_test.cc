#include "server/openai_response.h"

#include <gtest/gtest.h>

#include "base/source_dir_testing.h"

namespace kvcake {
namespace {

using nlohmann::json;

const Tokenizer& DemoTokenizer() {
  static const Tokenizer tokenizer = Tokenizer::Load(SourceDir() + "/models/demo").value();
  return tokenizer;
}

Completion Finished(FinishReason reason) {
  Completion completion{.tokens = {1, 2, 3}, .finish_reason = reason, .ttft_s = 0.5};
  completion.report.prompt_tokens = 300;
  completion.report.tokens_reused = 128;
  completion.report.tokens_loaded["disk"] = 64;
  return completion;
}

AnswerWriter Writer(AnswerWriter::Options options) {
  options.id = std::string("id-1");
  options.model = std::string("m");
  options.created = 1234;
  return AnswerWriter(DemoTokenizer(), std::move(options));
}

// The JSON of each event; the last must be [DONE] where `done`.
std::vector<json> Events(const std::string& text, bool done = false) {
  std::vector<json> events;
  size_t at = 0;
  while (at < text.size()) {
    const size_t end = text.find("\n\n", at);
    EXPECT_NE(end, std::string::npos);
    const std::string_view event = std::string_view(text).substr(at, end - at);
    EXPECT_EQ(event.substr(0, 6), "data: ");
    at = end + 2;
    if (event == "data: [DONE]") {
      EXPECT_TRUE(done);
      EXPECT_EQ(at, text.size());
    } else {
      events.push_back(json::parse(event.substr(6)));
    }
  }
  return events;
}

TEST(OpenAiResponseTest, WholeAnswers) {
  const auto chat =
      json::parse(Writer({.chat = true}).Whole("Hi \"you\"\n", {}, Finished(FinishReason::kStop)));
  EXPECT_EQ(chat, json::parse(R"({"id": "id-1", "object": "chat.completion", "created": 1234,
    "model": "m", "choices": [{"index": 0, "message": {"role": "assistant",
    "content": "Hi \"you\"\n"}, "logprobs": null, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 300, "completion_tokens": 3, "total_tokens": 303,
    "prompt_tokens_details": {"cached_tokens": 192}}})"));
  const auto text = json::parse(
      Writer({.chat = false, .report = true}).Whole("x", {}, Finished(FinishReason::kLength)));
  EXPECT_EQ(text["object"], "text_completion");
  EXPECT_EQ(text["choices"][0]["text"], "x");
  EXPECT_EQ(text["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(text["kvcake"]["ttft_s"], 0.5);
  EXPECT_EQ(text["kvcake"]["report"]["tokens_loaded"]["disk"], 64);
}

TEST(OpenAiResponseTest, WhatFailsIsNotWhatIsGivenUp) {
  const auto failure = [](FinishReason reason, std::string error = "") {
    return FailureOf({.finish_reason = reason, .error = std::move(error)});
  };
  EXPECT_FALSE(failure(FinishReason::kStop));
  EXPECT_FALSE(failure(FinishReason::kLength));
  EXPECT_EQ(failure(FinishReason::kCancelled).value().status, 503);  // worth another try
  EXPECT_EQ(failure(FinishReason::kError).value().status, 500);
  EXPECT_EQ(failure(FinishReason::kError, "no pages").value().status, 503);
  EXPECT_EQ(failure(FinishReason::kError, "no pages").value().message, "no pages");
  const auto events = Events(ErrorEvents({.status = 500, .message = "failed"}), /*done=*/true);
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0]["error"]["message"], "failed");
  EXPECT_TRUE(ErrorEvents({}).ends_with("data: [DONE]\n\n"));
}

TEST(OpenAiResponseTest, StreamsOfAChat) {
  AnswerWriter writer = Writer({.chat = true, .usage_in_stream = true});
  const json first = Events(writer.FirstEvent()).at(0);
  EXPECT_EQ(first["object"], "chat.completion.chunk");
  EXPECT_EQ(first["choices"][0]["delta"], json({{"role", "assistant"}, {"content", ""}}));
  EXPECT_TRUE(first["usage"].is_null());
  const json middle = Events(writer.Event("ab", {})).at(0);
  EXPECT_EQ(middle["choices"][0]["delta"], json({{"content", "ab"}}));
  EXPECT_TRUE(middle["choices"][0]["finish_reason"].is_null());
  const auto last = Events(writer.LastEvents(Finished(FinishReason::kStop)), true);
  ASSERT_EQ(last.size(), 2u);
  EXPECT_EQ(last[0]["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(last[0]["choices"][0]["delta"], json::object());
  EXPECT_EQ(last[1]["choices"], json::array());
  EXPECT_EQ(last[1]["usage"]["total_tokens"], 303);
}

TEST(OpenAiResponseTest, StreamsOfACompletion) {
  AnswerWriter writer = Writer({});
  EXPECT_EQ(writer.FirstEvent(), "");
  const json middle = Events(writer.Event("ab", {})).at(0);
  EXPECT_EQ(middle["choices"][0]["text"], "ab");
  EXPECT_FALSE(middle.contains("usage"));
  EXPECT_EQ(Events(writer.LastEvents(Finished(FinishReason::kLength)), true).size(), 1u);
}

TEST(OpenAiResponseTest, LogprobsOfBothKinds) {
  const auto token = [](std::string_view text) {
    return DemoTokenizer().Encode(text, false).value().at(0);
  };
  const std::vector<TokenInfo> tokens = {
      {.token = token("The"), .logprob = -0.5, .top = {{token("The"), -0.5}, {token("A"), -1}}},
      {.token = token("A"), .logprob = -2, .top = {{token("The"), -0.25}, {token("A"), -2}}}};
  AnswerWriter writer = Writer({.logprobs = true});
  json logprobs = Events(writer.Event("TheA", tokens)).at(0)["choices"][0]["logprobs"];
  EXPECT_EQ(logprobs["tokens"], json({"The", "A"}));
  EXPECT_EQ(logprobs["token_logprobs"], json({-0.5, -2}));
  EXPECT_EQ(logprobs["text_offset"], json({0, 3}));
  EXPECT_EQ(logprobs["top_logprobs"][1], json({{"The", -0.25}, {"A", -2}}));
  logprobs =
      Events(writer.Event("The", std::span(tokens).first(1))).at(0)["choices"][0]["logprobs"];
  EXPECT_EQ(logprobs["text_offset"], json({4}));  // goes on

  const json chat = Events(Writer({.chat = true, .logprobs = true}).Event("TheA", tokens))
                        .at(0)["choices"][0]["logprobs"]["content"];
  EXPECT_EQ(chat[0]["token"], "The");
  EXPECT_EQ(chat[0]["bytes"], json({'T', 'h', 'e'}));
  EXPECT_EQ(chat[1]["top_logprobs"][0]["logprob"], -0.25);
}

}  // namespace
}  // namespace kvcake
