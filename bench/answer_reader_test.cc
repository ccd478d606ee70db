#include "bench/answer_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

namespace kvcake::bench {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::string> Events(std::string_view bytes, size_t piece) {
  SseReader reader;
  std::vector<std::string> events;
  for (size_t at = 0; at < bytes.size(); at += piece) {
    EXPECT_TRUE(reader.Feed(bytes.substr(at, piece),
                            [&](std::string_view data) { events.emplace_back(data); }));
  }
  return events;
}

TEST(SseReader, PiecesOfAnySizeAreTheSameEvents) {
  constexpr std::string_view kStream =
      ": keep-alive\n\n"
      "data: one\n\n"
      "event: note\r\nid: 7\r\ndata:two\r\ndata:  three\r\n\r\n"
      ": ping\n"
      "data:\n\n"
      "retry: 10\n\n"
      "data: never ended";
  for (size_t piece = 1; piece <= kStream.size(); ++piece) {
    EXPECT_THAT(Events(kStream, piece), ElementsAre("one", "two\n three", "")) << piece;
  }
}

TEST(SseReader, RefusesAnEventWithoutEnd) {
  SseReader reader;
  const std::string much(1 << 20, 'x');
  Status status;
  for (int i = 0; i < 20 && status; ++i) status = reader.Feed(much, [](std::string_view) {});
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kResourceExhausted);
}

constexpr const char* kUsage =
    R"(data: {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 2,)"
    R"( "prompt_tokens_details": {"cached_tokens": 4}}})"
    "\n\n";

TEST(AnswerReader, ReadsACompletion) {
  AnswerReader reader;
  EXPECT_TRUE(reader.Feed(": hello\n\ndata: {\"choices\": [{\"text\": \"On\", \"fin", 1));
  EXPECT_TRUE(reader.Feed("ish_reason\": null}], \"usage\": null}\n", 2));
  EXPECT_TRUE(reader.Feed("\n", 3));  // only now it is an event
  EXPECT_TRUE(reader.Feed("data: {\"choices\": [{\"text\": \"ce\"}]}\n\n", 4));
  EXPECT_TRUE(
      reader.Feed("data: {\"choices\": [{\"text\": \"\", \"finish_reason\": \"length\"}]}\n\n", 5));
  EXPECT_TRUE(reader.Feed(kUsage, 6));
  EXPECT_FALSE(reader.Feed("data: [DONE]\n\ndata: never read\n\n", 7));
  const Answer answer = reader.Finish();
  EXPECT_TRUE(answer.ok()) << answer.error;
  EXPECT_EQ(answer.text, "Once");
  EXPECT_THAT(answer.token_s, ElementsAre(3, 4));
  EXPECT_EQ(answer.end_s, 6);
  EXPECT_EQ(answer.finish_reason, "length");
  EXPECT_EQ(answer.prompt_tokens, 9);
  EXPECT_EQ(answer.completion_tokens, 2);
  EXPECT_EQ(answer.cached_tokens, 4);
}

TEST(AnswerReader, ReadsAChat) {
  AnswerReader reader;
  reader.Feed(
      "data: {\"choices\": [{\"delta\": {\"role\": \"assistant\", \"content\": \"\"}}]}\n\n", 1);
  reader.Feed("data: {\"choices\": [{\"delta\": {\"reasoning_content\": \"hm\"}}]}\n\n", 2);
  reader.Feed("data: {\"choices\": [{\"delta\": {\"reasoning\": \"hm\"}}]}\n\n", 3);
  reader.Feed("data: {\"choices\": [{\"delta\": {\"content\": \"Yes\"}}]}\n\n", 4);
  reader.Feed("data: {\"choices\": [{\"delta\": {}, \"finish_reason\": \"stop\"}]}\n\n", 5);
  const Answer answer = reader.Finish();  // some servers say no [DONE]
  EXPECT_TRUE(answer.ok()) << answer.error;
  EXPECT_EQ(answer.text, "Yes");
  EXPECT_THAT(answer.token_s, ElementsAre(2, 3, 4));
  EXPECT_FALSE(answer.cached_tokens);
}

TEST(AnswerReader, AnEmptyAnswerIsOne) {
  AnswerReader reader;
  reader.Feed("data: {\"choices\": [{\"text\": \"\", \"finish_reason\": \"stop\"}]}\n\n", 1);
  EXPECT_FALSE(reader.Feed("data: [DONE]\n\n", 2));
  const Answer answer = reader.Finish();
  EXPECT_TRUE(answer.ok());
  EXPECT_THAT(answer.token_s, ElementsAre(1));
}

TEST(AnswerReader, ErrorsInsideAStream) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"error": {"message": "out of memory", "code": 500}})", "out of memory"},
      {R"({"error": "gone"})", "gone"},
      {R"({"error": {"what": 1}})", "what"}};
  for (const auto& [event, message] : cases) {
    AnswerReader reader;
    reader.Feed("data: {\"choices\": [{\"text\": \"On\"}]}\n\n", 1);
    EXPECT_FALSE(reader.Feed(std::string("data: ") + event + "\n\ndata: [DONE]\n\n", 2));
    const Answer answer = reader.Finish();
    EXPECT_EQ(answer.error_kind, "error in the stream");
    EXPECT_THAT(answer.error, HasSubstr(message));
  }
}

TEST(AnswerReader, WhatEndsEarlyOrIsNoStreamIsAnError) {
  AnswerReader cut;
  cut.Feed("data: {\"choices\": [{\"text\": \"On\"}]}\n\n", 1);
  EXPECT_EQ(cut.Finish().error_kind, "ended early");
  EXPECT_EQ(AnswerReader().Finish().error_kind, "ended early");
  AnswerReader garbage;
  EXPECT_FALSE(garbage.Feed("data: {]\n\n", 1));
  EXPECT_EQ(garbage.Finish().error_kind, "not a stream of events");
}

// Whatever comes, in whatever pieces: an answer or an error, and the same for all cuts.
TEST(AnswerReader, CutsDoNotMatter) {
  const std::string parts[] = {"data: ",
                               "{\"choices\": [{\"text\": \"a\"}]}",
                               "\n\n",
                               "\r\n",
                               ":",
                               "{\"choices\": 3}",
                               "[DONE]",
                               "null",
                               "{\"usage\": {\"prompt_tokens\": \"x\"}}",
                               "{\"choices\": [{\"finish_reason\": \"stop\"}]}",
                               "\xff"};
  std::mt19937_64 rng(1);
  for (int round = 0; round < 2000; ++round) {
    std::string stream;
    for (int i = 0; i < 12; ++i) stream += parts[rng() % std::size(parts)];
    AnswerReader whole, cut;
    whole.Feed(stream, 1);
    for (size_t at = 0; at < stream.size();) {
      const size_t bytes = 1 + rng() % 9;
      cut.Feed(std::string_view(stream).substr(at, bytes), 1);
      at += bytes;
    }
    const Answer a = whole.Finish(), b = cut.Finish();
    EXPECT_EQ(a.text, b.text) << stream;
    EXPECT_EQ(a.error_kind, b.error_kind) << stream;
  }
}

TEST(ErrorMessage, IsOpenAisOrTheBeginning) {
  EXPECT_EQ(ErrorMessage(429, R"({"error": {"message": "slow down"}})"), "status 429: slow down");
  EXPECT_EQ(ErrorMessage(400, R"({"object": "error", "message": "too long"})"),
            "status 400: too long");
  EXPECT_EQ(ErrorMessage(500, "<html>"), "status 500: <html>");
  EXPECT_EQ(ErrorMessage(502, ""), "status 502");
}

}  // namespace
}  // namespace kvcake::bench
