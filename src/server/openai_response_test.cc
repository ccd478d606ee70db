#include "server/openai_response.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>

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

// The body of one answer.
json Whole(AnswerWriter::Options options, const AnswerDelta& text, FinishReason reason) {
  const Completion completion = Finished(reason);
  const std::vector<AnswerWriter::Choice> choices = {{.text = text, .completion = &completion}};
  return json::parse(Writer(std::move(options)).Whole(choices, completion));
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

std::string End(AnswerWriter& writer, FinishReason reason, bool called = false) {
  const Completion completion = Finished(reason);
  return writer.LastEvent(0, completion, {}, called) + writer.End(completion);
}

TEST(OpenAiResponseTest, SeveralAnswersHaveIndices) {
  const std::vector<Completion> ends = {Finished(FinishReason::kStop),
                                        Finished(FinishReason::kLength)};
  const std::vector<AnswerWriter::Choice> choices = {
      {.text = {.content = "a"}, .completion = &ends[0]},
      {.text = {.content = "b"}, .completion = &ends[1]}};
  const AnswerWriter::Options options{.report = true, .choices = 2};
  const json body = json::parse(Writer(options).Whole(choices, SumOf(ends, 2)));
  EXPECT_EQ(body["choices"][1]["index"], 1);
  EXPECT_EQ(body["choices"][1]["text"], "b");
  EXPECT_EQ(body["choices"][1]["finish_reason"], "length");
  EXPECT_EQ(body["choices"][0]["kvcake"]["ttft_s"], 0.5);
  EXPECT_FALSE(body.contains("kvcake"));
  EXPECT_EQ(body["usage"]["prompt_tokens"], 300);
  EXPECT_EQ(body["usage"]["completion_tokens"], 6);
  AnswerWriter writer = Writer({.chat = true, .logprobs = true, .choices = 2});
  const auto first = Events(writer.FirstEvents());
  ASSERT_EQ(first.size(), 2u);
  EXPECT_EQ(first[1]["choices"][0]["index"], 1);
  EXPECT_EQ(Events(writer.LastEvent(1, ends[1], {}, false)).at(0)["choices"][0]["index"], 1);
  AnswerWriter reporting = Writer(options);
  EXPECT_TRUE(Events(reporting.LastEvent(1, ends[1], {}, false)).at(0).contains("kvcake"));
}

TEST(OpenAiResponseTest, ThoughtsAndCallsAreApart) {
  const AnswerDelta text{.reasoning = "hm",
                         .calls = {{.index = 0, .id = "a", .name = "f", .arguments = "{}"}}};
  const json whole = Whole({.chat = true}, text, FinishReason::kStop)["choices"][0];
  EXPECT_EQ(whole["finish_reason"], "tool_calls");
  EXPECT_EQ(whole["message"], json::parse(R"({"role": "assistant", "content": null,
    "reasoning": "hm", "reasoning_content": "hm", "tool_calls": [{"id": "a", "type": "function",
    "function": {"name": "f", "arguments": "{}"}}]})"));
  EXPECT_EQ(Whole({.chat = true}, text, FinishReason::kLength)["choices"][0]["finish_reason"],
            "length");
  AnswerDelta both = text;
  both.content = "Let me see.";
  EXPECT_EQ(Whole({.chat = true}, both, FinishReason::kStop)["choices"][0]["message"]["content"],
            "Let me see.");
  AnswerWriter writer = Writer({.chat = true});
  const auto delta = [&](const AnswerDelta& piece) {
    return Events(writer.Event(0, piece, {})).at(0)["choices"][0]["delta"];
  };
  EXPECT_EQ(delta(text), json::parse(R"({"reasoning": "hm", "reasoning_content": "hm",
    "tool_calls": [{"index": 0, "id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}]})"));
  EXPECT_EQ(delta({.calls = {{.index = 1, .arguments = "x"}}}),
            json::parse(R"({"tool_calls": [{"index": 1, "function": {"arguments": "x"}}]})"));
  EXPECT_EQ(delta({}), json({{"content", ""}}));  // its tokens have log probabilities alone
  EXPECT_EQ(Events(End(writer, FinishReason::kStop, true), true)[0]["choices"][0]["finish_reason"],
            "tool_calls");
}

TEST(OpenAiResponseTest, WholeAnswers) {
  const json chat = Whole({.chat = true}, {.content = "Hi \"you\"\n"}, FinishReason::kStop);
  EXPECT_EQ(chat, json::parse(R"({"id": "id-1", "object": "chat.completion", "created": 1234,
    "model": "m", "choices": [{"index": 0, "message": {"role": "assistant",
    "content": "Hi \"you\"\n"}, "logprobs": null, "finish_reason": "stop",
    "stop_reason": null}],
    "usage": {"prompt_tokens": 300, "completion_tokens": 3, "total_tokens": 303,
    "prompt_tokens_details": {"cached_tokens": 192}}})"));
  const json text = Whole({.report = true}, {.content = "x"}, FinishReason::kLength);
  EXPECT_EQ(text["object"], "text_completion");
  EXPECT_EQ(text["choices"][0]["text"], "x");
  EXPECT_EQ(text["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(text["kvcake"]["ttft_s"], 0.5);
  EXPECT_EQ(text["kvcake"]["report"]["tokens_loaded"]["disk"], 64);
}

TEST(OpenAiResponseTest, EachTimeOfTheReportHasItsName) {
  const json report = KvcakeReport(
      {.queue_s = 1, .restore_s = 2, .ttft_s = 3, .decode_s = 4, .steps_s = 5, .preemptions = 6});
  EXPECT_EQ(report["queue_s"], 1);
  EXPECT_EQ(report["restore_s"], 2);
  EXPECT_EQ(report["ttft_s"], 3);
  EXPECT_EQ(report["decode_s"], 4);
  EXPECT_EQ(report["steps_s"], 5);
  EXPECT_EQ(report["preemptions"], 6);
}

TEST(OpenAiResponseTest, UsageSaysThatChunksHaveGoneThroughALossyCodec) {
  Completion completion = Finished(FinishReason::kStop);
  EXPECT_FALSE(Usage(completion)["prompt_tokens_details"].contains("lossy_codecs"));
  completion.report.lossy = "int8";
  EXPECT_EQ(Usage(completion)["prompt_tokens_details"]["lossy_codecs"], "int8");
}

TEST(OpenAiResponseTest, WhatStoppedThemIsSaid) {
  const Completion completion = Finished(FinishReason::kStop);
  for (const bool chat : {false, true}) {
    for (const auto& [reason, expected] :
         {std::pair(StopReason(), json()), std::pair(StopReason("\n"), json("\n")),
          std::pair(StopReason(7), json(7))}) {
      const std::vector<AnswerWriter::Choice> choices = {
          {.completion = &completion, .stop_reason = reason}};
      AnswerWriter writer = Writer({.chat = chat});
      const json whole = json::parse(writer.Whole(choices, completion))["choices"][0];
      EXPECT_EQ(whole.at("stop_reason"), expected);
      const json last = Events(writer.LastEvent(0, completion, reason, false)).at(0)["choices"][0];
      EXPECT_EQ(last.at("stop_reason"), expected);
      EXPECT_FALSE(Events(writer.Event(0, {}, {})).at(0)["choices"][0].contains("stop_reason"));
    }
  }
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
  const json first = Events(writer.FirstEvents()).at(0);
  EXPECT_EQ(first["object"], "chat.completion.chunk");
  EXPECT_EQ(first["choices"][0]["delta"], json({{"role", "assistant"}, {"content", ""}}));
  EXPECT_TRUE(first["usage"].is_null());
  const json middle = Events(writer.Event(0, {.content = "ab"}, {})).at(0);
  EXPECT_EQ(middle["choices"][0]["delta"], json({{"content", "ab"}}));
  EXPECT_TRUE(middle["choices"][0]["finish_reason"].is_null());
  const auto last = Events(End(writer, FinishReason::kStop), true);
  ASSERT_EQ(last.size(), 2u);
  EXPECT_EQ(last[0]["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(last[0]["choices"][0], json::parse(R"({"index": 0, "delta": {}, "logprobs": null,
    "finish_reason": "stop", "stop_reason": null})"));
  EXPECT_EQ(last[1]["choices"], json::array());
  EXPECT_EQ(last[1]["usage"]["total_tokens"], 303);
}

TEST(OpenAiResponseTest, UsageInEveryChunkIsItsChoicesSoFar) {
  AnswerWriter writer =
      Writer({.chat = true, .usage_in_stream = true, .usage_in_chunks = true, .choices = 2});
  writer.Count(0, 5, 0);
  writer.Count(1, 7, 0);
  const auto first = Events(writer.FirstEvents());
  EXPECT_EQ(first.at(1)["usage"],
            json({{"prompt_tokens", 7}, {"completion_tokens", 0}, {"total_tokens", 7}}));
  writer.Count(0, 5, 2);
  EXPECT_EQ(Events(writer.Event(0, {.content = "ab"}, {})).at(0)["usage"]["total_tokens"], 7);
  EXPECT_EQ(Events(writer.Event(1, {.content = "ab"}, {})).at(0)["usage"]["total_tokens"], 7);
  writer.Count(0, 5, 3);
  EXPECT_EQ(Events(writer.Event(0, {.content = "c"}, {})).at(0)["usage"]["completion_tokens"], 3);
}

TEST(OpenAiResponseTest, StreamsOfACompletion) {
  AnswerWriter writer = Writer({});
  EXPECT_EQ(writer.FirstEvents(), "");
  const json middle = Events(writer.Event(0, {.content = "ab"}, {})).at(0);
  EXPECT_EQ(middle["choices"][0]["text"], "ab");
  EXPECT_FALSE(middle.contains("usage"));
  EXPECT_EQ(Events(End(writer, FinishReason::kLength), true).size(), 1u);
}

TEST(OpenAiResponseTest, LogprobsOfBothKinds) {
  const auto token = [](std::string_view text) {
    return DemoTokenizer().Encode(text, false).value().at(0);
  };
  const std::vector<TokenInfo> tokens = {
      {.token = token("The"), .logprob = -0.5, .top = {{token("The"), -0.5}, {token("A"), -1}}},
      {.token = token("A"), .logprob = -2, .top = {{token("The"), -0.25}, {token("A"), -2}}}};
  AnswerWriter writer = Writer({.logprobs = true});
  json logprobs =
      Events(writer.Event(0, {.content = "TheA"}, tokens)).at(0)["choices"][0]["logprobs"];
  EXPECT_EQ(logprobs["tokens"], json({"The", "A"}));
  EXPECT_EQ(logprobs["token_logprobs"], json({-0.5, -2}));
  EXPECT_EQ(logprobs["text_offset"], json({0, 3}));
  EXPECT_EQ(logprobs["top_logprobs"][1], json({{"The", -0.25}, {"A", -2}}));
  logprobs = Events(writer.Event(0, {.content = "The"}, std::span(tokens).first(1)))
                 .at(0)["choices"][0]["logprobs"];
  EXPECT_EQ(logprobs["text_offset"], json({4}));  // goes on

  AnswerWriter several = Writer({.logprobs = true, .choices = 2});
  (void)several.Event(0, {.content = "TheA"}, tokens);
  logprobs = Events(several.Event(1, {.content = "TheA"}, tokens)).at(0)["choices"][0]["logprobs"];
  EXPECT_EQ(logprobs["text_offset"], json({0, 3}));  // each answer begins anew

  const json chat =
      Events(Writer({.chat = true, .logprobs = true}).Event(0, {.content = "TheA"}, tokens))
          .at(0)["choices"][0]["logprobs"]["content"];
  EXPECT_EQ(chat[0]["token"], "The");
  EXPECT_EQ(chat[0]["bytes"], json({'T', 'h', 'e'}));
  EXPECT_EQ(chat[1]["top_logprobs"][0]["logprob"], -0.25);
}

// Tokens that are a part of a character alone: one of 3 bytes is written as 3 tokens.
TEST(OpenAiResponseTest, LogprobsHaveTheBytesOfPartsOfCharacters) {
  const std::string text = "\xe2\x98\x83";
  const auto ids = DemoTokenizer().Encode(text, false).value();
  ASSERT_EQ(ids.size(), 3u);  // else it is in the vocabulary: take a rarer one
  std::vector<TokenInfo> tokens;
  for (const int32_t id : ids) {
    tokens.push_back(
        {.token = id, .logprob = -1, .top = {{ids[0], -1}, {ids[1], -2}, {ids[2], -3}}});
  }
  const json chat =
      Events(Writer({.chat = true, .logprobs = true}).Event(0, {.content = text}, tokens))
          .at(0)["choices"][0]["logprobs"]["content"];
  std::string bytes;
  for (const json& one : chat) {
    for (const int byte : one["bytes"]) bytes += static_cast<char>(byte);
  }
  EXPECT_EQ(bytes, text);
  EXPECT_EQ(chat[1]["token"], "\\x98");
  EXPECT_EQ(chat[1]["top_logprobs"][2]["bytes"], json({0x83}));
  AnswerWriter writer = Writer({.logprobs = true});
  const json plain =
      Events(writer.Event(0, {.content = text}, tokens)).at(0)["choices"][0]["logprobs"];
  EXPECT_EQ(plain["tokens"], json({"bytes:\\xe2", "bytes:\\x98", "bytes:\\x83"}));
  EXPECT_EQ(plain["text_offset"], json({0, 1, 1}));  // it begins with the first
  EXPECT_EQ(plain["top_logprobs"][0].size(), 3u);
}

// As byte fallback has them: the byte "A", and the letter.
TEST(OpenAiResponseTest, TopLogprobsOfTheSameTextStayApart) {
  const auto token = [](std::string_view text) {
    return DemoTokenizer().Encode(text, false).value().at(0);
  };
  const int32_t a = token("A"), the = token("The");
  const std::vector<TokenInfo> tokens = {
      {.token = a, .logprob = -2, .top = {{the, -0.5}, {the, -1}, {a, -1.5}, {a, -2}}}};
  AnswerWriter writer = Writer({.logprobs = true});
  const json top = Events(writer.Event(0, {.content = "A"}, tokens))
                       .at(0)["choices"][0]["logprobs"]["top_logprobs"][0];
  EXPECT_EQ(top.size(), 3u);  // the id is the same here, as no two have the same text
  EXPECT_EQ(top["The"], -0.5);
  EXPECT_EQ(top["token_id:" + std::to_string(the)], -1);
  EXPECT_EQ(top["A"], -2);
}

TEST(OpenAiResponseTest, TheChosenTokenIsAmongTheTopWhereItIsNotOneOfThem) {
  const int32_t chosen = 65, likely = 66;
  const std::vector<TokenInfo> tokens = {{.token = chosen, .logprob = -9, .top = {{likely, -0.5}}}};
  AnswerWriter writer = Writer({.logprobs = true});
  const json top = Events(writer.Event(0, {.content = "x"}, tokens))
                       .at(0)["choices"][0]["logprobs"]["top_logprobs"][0];
  EXPECT_EQ(top,
            json({{DemoTokenizer().Bytes(chosen), -9.0}, {DemoTokenizer().Bytes(likely), -0.5}}));
}

// What a client had before its answer was given up counts as one: its tenant has used it.
TEST(OpenAiResponseTest, AnAnswerThatWasCutShortIsOne) {
  EXPECT_TRUE(HasAnswer({.tokens = {1}, .finish_reason = FinishReason::kCancelled}));
  EXPECT_FALSE(HasAnswer({.finish_reason = FinishReason::kCancelled}));
  EXPECT_TRUE(HasAnswer({.finish_reason = FinishReason::kStop}));
}

// JSON values take ten times what their text does.
TEST(OpenAiResponseTest, LogprobsOfManyTokensAreWrittenFewAtATime) {
#ifdef KVCAKE_SANITIZED
  GTEST_SKIP() << "a sanitizer keeps what is freed, and memory of its own";
#endif
  std::vector<AnswerWriter::Choice> choices(1);
  choices[0].tokens.resize(64 << 10, {.token = 5, .logprob = -1});
  for (TokenInfo& info : choices[0].tokens) info.top.resize(20, {.token = 5, .logprob = -1});
  const Completion completion = Finished(FinishReason::kStop);
  choices[0].completion = &completion;
  const auto peak_bytes = [] {
    struct rusage usage = {};
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss * 1024;
  };
  const auto before = peak_bytes();
  const std::string body = Writer({.chat = true, .logprobs = true}).Whole(choices, completion);
  EXPECT_LT(peak_bytes() - before, 8 * static_cast<int64_t>(body.size()));
  EXPECT_EQ(std::ranges::count(body, '['), 2 + (64 << 10) * 22);
}

TEST(OpenAiResponseTest, LogprobsOfAWholeAnswerAreThoseOfItsEvents) {
  std::vector<TokenInfo> tokens(1000);
  for (size_t i = 0; i < tokens.size(); ++i) {
    const auto token = static_cast<int32_t>(5 + i);
    tokens[i] = {.token = token, .logprob = -1, .top = {{token, -1}, {4, -2}}};
  }
  const Completion completion = Finished(FinishReason::kStop);
  for (const bool chat : {false, true}) {
    for (const size_t count : {size_t{0}, size_t{1}, tokens.size()}) {
      const std::vector<TokenInfo> some(tokens.begin(), tokens.begin() + count);
      const std::vector<AnswerWriter::Choice> choices = {
          {.text = {.content = "a"}, .tokens = some, .completion = &completion}};
      const AnswerWriter::Options options = {.chat = chat, .logprobs = true};
      const json whole = json::parse(Writer(options).Whole(choices, completion));
      const json event = Events(Writer(options).Event(0, {.content = "a"}, some)).at(0);
      EXPECT_EQ(whole["choices"][0]["logprobs"], event["choices"][0]["logprobs"]);
      EXPECT_EQ(whole["choices"][0]["finish_reason"], "stop");
    }
  }
}

}  // namespace
}  // namespace kvcake
