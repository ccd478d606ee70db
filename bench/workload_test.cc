#include "bench/workload.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/source_dir_testing.h"

namespace kvcake::bench {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

bool operator==(const TextPiece& a, const TextPiece& b) {
  return a.label == b.label && a.tokens == b.tokens;
}

bool Same(const Workload& a, const Workload& b) {
  return std::equal(a.requests.begin(), a.requests.end(), b.requests.begin(), b.requests.end(),
                    [](const WorkloadRequest& x, const WorkloadRequest& y) {
                      return x.at_s == y.at_s && x.conversation == y.conversation &&
                             x.round == y.round && x.max_tokens == y.max_tokens &&
                             std::equal(
                                 x.text.begin(), x.text.end(), y.text.begin(), y.text.end(),
                                 [](const TextPiece& p, const TextPiece& q) { return p == q; });
                    });
}

std::vector<std::string> Documents(const WorkloadOptions& options) {
  std::vector<std::string> labels;
  const Workload workload = MakeWorkload(options).value();
  for (const WorkloadRequest& request : workload.requests) labels.push_back(request.text[0].label);
  return labels;
}

TEST(Workload, SeedsReproduceAndDiffer) {
  for (const char* name : {"long-doc-qa", "random-prefill"}) {
    WorkloadOptions options{.name = name, .seed = 5, .request_rate = 3, .range_ratio = 0.5};
    const Workload one = MakeWorkload(options).value();
    EXPECT_TRUE(Same(one, MakeWorkload(options).value())) << name;
    options.seed = 6;
    EXPECT_FALSE(Same(one, MakeWorkload(options).value())) << name;
  }
}

TEST(Workload, LongDocQaAsksInTheOrderThatIsAskedFor) {
  WorkloadOptions options{.num_documents = 3, .repeat_count = 2, .repeat_mode = "tile"};
  EXPECT_THAT(Documents(options), ElementsAre("Document 0", "Document 1", "Document 2",
                                              "Document 0", "Document 1", "Document 2"));
  options.repeat_mode = "interleave";
  EXPECT_THAT(Documents(options), ElementsAre("Document 0", "Document 0", "Document 1",
                                              "Document 1", "Document 2", "Document 2"));
  options.repeat_mode = "random";
  options.num_documents = 40;
  auto order = Documents(options);
  EXPECT_FALSE(std::is_sorted(order.begin(), order.end()));
  std::map<std::string, int> times;
  for (const std::string& label : order) ++times[label];
  EXPECT_EQ(times.size(), 40u);
  EXPECT_TRUE(std::all_of(times.begin(), times.end(), [](const auto& t) { return t.second == 2; }));
  // Its questions are never the same.
  std::set<std::string> questions;
  const Workload workload = MakeWorkload(options).value();
  for (const WorkloadRequest& request : workload.requests) {
    questions.insert(request.text[1].label);
  }
  EXPECT_EQ(questions.size(), 80u);
  options.repeat_mode = "backwards";
  EXPECT_THAT(MakeWorkload(options).error().message, HasSubstr("--repeat-mode backwards"));
}

TEST(Workload, RoundsOfAChatComeInOrderAndUsersTakeTurns) {
  const Workload workload = MakeWorkload({.name = "multi-round-chat",
                                          .request_rate = 2,
                                          .arrivals = "fixed",
                                          .num_users = 3,
                                          .num_rounds = 4,
                                          .shared_system_tokens = 100})
                                .value();
  EXPECT_EQ(workload.system.tokens, 100);
  ASSERT_EQ(workload.requests.size(), 12u);
  for (size_t i = 0; i < workload.requests.size(); ++i) {
    const WorkloadRequest& request = workload.requests[i];
    EXPECT_EQ(request.conversation, static_cast<int>(i % 3));
    EXPECT_EQ(request.round, static_cast<int>(i / 3));
    EXPECT_DOUBLE_EQ(request.at_s, 0.5 * static_cast<double>(i));
    EXPECT_EQ(request.text.size(), request.round == 0 ? 2u : 1u);  // its history, once
  }
}

TEST(Workload, LengthsOfRandomPrefillFillTheirRange) {
  const Workload workload = MakeWorkload({.name = "random-prefill",
                                          .num_prompts = 2000,
                                          .input_tokens = 1000,
                                          .range_ratio = 0.25})
                                .value();
  ASSERT_EQ(workload.requests.size(), 2000u);
  int least = 1 << 30, most = 0;
  for (const WorkloadRequest& request : workload.requests) {
    least = std::min(least, request.text[0].tokens);
    most = std::max(most, request.text[0].tokens);
    EXPECT_EQ(request.at_s, 0);
  }
  EXPECT_GE(least, 750);
  EXPECT_LE(most, 1250);
  EXPECT_LT(least, 760);
  EXPECT_GT(most, 1240);
}

TEST(Workload, ArrivalsKeepTheirRate) {
  const auto fixed = Arrivals(5, 4, false, 1);
  EXPECT_THAT(fixed, ElementsAre(0, 0.25, 0.5, 0.75, 1));
  const auto poisson = Arrivals(20001, 4, true, 1);
  EXPECT_TRUE(std::is_sorted(poisson.begin(), poisson.end()));
  EXPECT_NEAR(poisson.back(), 5000, 150);  // its standard deviation is 35
  // A share of 1 - 1/e of exponential gaps is below the mean.
  int below = 0;
  for (size_t i = 1; i < poisson.size(); ++i) below += poisson[i] - poisson[i - 1] < 0.25;
  EXPECT_NEAR(below / 20000.0, 0.632, 0.015);
  const auto at_once = Arrivals(3, std::numeric_limits<double>::infinity(), true, 1);
  EXPECT_THAT(at_once, ElementsAre(0, 0, 0));
}

TEST(Workload, RefusesWhatItDoesNotKnow) {
  EXPECT_THAT(MakeWorkload({.name = "sonnet"}).error().message, HasSubstr("--workload sonnet"));
  EXPECT_THAT(MakeWorkload({.arrivals = "bursts"}).error().message, HasSubstr("--arrivals bursts"));
  EXPECT_THAT(MakeWorkload({.request_rate = 0}).error().message, HasSubstr("--request-rate"));
  EXPECT_THAT(MakeWorkload({.name = "trace"}).error().message, HasSubstr("--trace FILE"));
  EXPECT_THAT(MakeWorkload({.name = "trace", .request_rate = 2, .trace = "x"}).error().message,
              HasSubstr("--time-scale"));
  EXPECT_FALSE(MakeWorkload({.name = "trace", .trace = "/there/is/none"}));
  EXPECT_THAT(MakeWorkload({.num_documents = 1 << 28, .repeat_count = 100}).error().message,
              HasSubstr("at most"));
}

Result<std::vector<WorkloadRequest>> Parse(const std::string& text,
                                           const WorkloadOptions& options = {}) {
  return ParseTrace(text, "t.jsonl", options);
}

constexpr const char* kTwoLines =
    R"({"timestamp": 500, "input_length": 1124, "output_length": 7, "hash_ids": [0, 4, 5]})"
    "\n\n"
    R"({"timestamp": 2500, "input_length": 512, "output_length": 0, "hash_ids": [0]})";

TEST(Trace, EqualIdsAreEqualPieces) {
  const auto requests = Parse(kTwoLines).value();
  ASSERT_EQ(requests.size(), 2u);
  EXPECT_EQ(requests[0].at_s, 0);  // it begins with its first request
  EXPECT_EQ(requests[1].at_s, 2);
  ASSERT_EQ(requests[0].text.size(), 3u);
  EXPECT_TRUE(requests[0].text[0] == requests[1].text[0]);
  EXPECT_EQ(requests[0].text[2].tokens, 100);
  EXPECT_EQ(requests[0].max_tokens, 7);
  EXPECT_EQ(requests[1].max_tokens, 1);  // somebody must be asked for something
}

TEST(Trace, ScalesLengthsAndTime) {
  const auto requests = Parse(kTwoLines, {.length_scale = 0.25, .time_scale = 0.1}).value();
  EXPECT_EQ(requests[0].text[0].tokens, 128);
  EXPECT_EQ(requests[0].text[2].tokens, 25);
  EXPECT_EQ(requests[0].max_tokens, 2);
  EXPECT_DOUBLE_EQ(requests[1].at_s, 0.2);
  EXPECT_EQ(Parse(kTwoLines, {.num_prompts = 1}).value().size(), 1u);
}

TEST(Trace, ErrorsNameFileAndLine) {
  const std::string good = std::string(kTwoLines) + "\n";
  const std::pair<const char*, const char*> cases[] = {
      {"{", "t.jsonl, line 4"},
      {"[1]", "line 4: is not a JSON object"},
      {R"({"input_length": 1, "output_length": 1, "hash_ids": [1]})", "line 4: timestamp"},
      {R"({"timestamp": -1, "input_length": 1, "output_length": 1, "hash_ids": [1]})",
       "line 4: timestamp"},
      {R"({"timestamp": 1, "input_length": 0, "output_length": 1, "hash_ids": []})",
       "line 4: input_length"},
      {R"({"timestamp": 1, "input_length": 1e300, "output_length": 1, "hash_ids": []})",
       "line 4: input_length"},
      {R"({"timestamp": 1, "input_length": 1, "output_length": "x", "hash_ids": [1]})",
       "line 4: output_length"},
      {R"({"timestamp": 1, "input_length": 1, "output_length": 1, "hash_ids": [-1]})",
       "line 4: hash_ids"},
      {R"({"timestamp": 1, "input_length": 1, "output_length": 1})", "line 4: hash_ids"},
      {R"({"timestamp": 1, "input_length": 513, "output_length": 1, "hash_ids": [1]})",
       "line 4: has 1 hash_ids: an input_length of 513 has 2"},
  };
  for (const auto& [line, message] : cases) {
    const auto parsed = Parse(good + line + "\n");
    ASSERT_FALSE(parsed) << line;
    EXPECT_THAT(parsed.error().message, HasSubstr(message));
  }
  EXPECT_THAT(Parse(" \n").error().message, HasSubstr("t.jsonl has no requests"));
}

Workload Sample(const std::string& name) {
  return MakeWorkload({.name = "trace", .trace = SourceDir() + "/bench/traces/" + name}).value();
}

// The share of the blocks that an earlier request had.
double SeenBefore(const Workload& workload) {
  std::set<std::string> seen;
  double again = 0, all = 0;
  for (const WorkloadRequest& request : workload.requests) {
    for (const TextPiece& piece : request.text) again += seen.contains(piece.label), ++all;
    for (const TextPiece& piece : request.text) seen.insert(piece.label);
  }
  return again / all;
}

TEST(Trace, TheSamplesAreWhatMooncakePublished) {
  const Workload conversation = Sample("mooncake_conversation_200.jsonl");
  ASSERT_EQ(conversation.requests.size(), 200u);
  EXPECT_EQ(conversation.requests[0].text.size(), 14u);
  EXPECT_EQ(conversation.requests[0].max_tokens, 500);
  EXPECT_EQ(conversation.requests[199].at_s, 72);
  EXPECT_NEAR(SeenBefore(conversation), 0.058, 0.001);
  const Workload synthetic = Sample("mooncake_synthetic_200.jsonl");
  ASSERT_EQ(synthetic.requests.size(), 200u);
  EXPECT_EQ(synthetic.requests[0].at_s, 0);
  EXPECT_NEAR(SeenBefore(synthetic), 0.650, 0.001);
}

}  // namespace
}  // namespace kvcake::bench
