#include "server/request_preparer.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "server/demo_runtime_testing.h"

namespace kvcake {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Ask = RequestPreparer::Ask;

class RequestPreparerTest : public testing::Test {
 protected:
  RequestPreparer Preparer() const {
    return {*runtime_, ChatTemplate::FromText("{{ messages[0].content }}", {}), options_};
  }
  ApiResult<PreparedRequest> Prepare(const std::string& body, Ask ask = Ask::kCompletion) const {
    return Preparer().Prepare(body, ask, "ann");
  }
  // Prepares a chat that has room enough, and whose calls are read.
  PreparedRequest Prepared(const std::string& body, const std::string& tool_parser = "hermes") {
    options_.model_len_max = 4096;
    options_.auto_tool_choice = true;
    options_.tool_parser = tool_parser;
    auto prepared = Prepare(body, Ask::kChat);
    EXPECT_TRUE(prepared) << prepared.error().message;
    return prepared ? *std::move(prepared) : PreparedRequest();
  }
  // Why a body was refused; empty: it was not.
  std::string Refusal(const std::string& body, Ask ask = Ask::kCompletion) const {
    const auto prepared = Prepare(body, ask);
    return prepared ? "" : prepared.error().param + ": " + prepared.error().message;
  }
  // The most tokens that the first answer may have.
  int AnswerTokens(const std::string& body) const {
    const auto prepared = Prepare(body);
    EXPECT_TRUE(prepared) << prepared.error().message;
    return prepared ? prepared->requests[0].max_tokens : -1;
  }

  const std::unique_ptr<Runtime> runtime_ = testing_util::DemoRuntime();
  RequestPreparer::Options options_ = {.model_names = {"m", "alias"}, .model_len_max = 8};
};

// The words that calls stand between are special tokens of these families' models.
TEST_F(RequestPreparerTest, CallsAreReadWithTheSpecialTokensThatTheyAreWrittenWith) {
  const std::string chat = R"({"messages": [{"role": "user", "content": "x"}])";
  const std::string tools = chat + R"(, "tools": [{"function": {"name": "f"}}])";
  EXPECT_FALSE(Prepared(tools + "}", "hermes").asked.skip_special);
  EXPECT_FALSE(Prepared(tools + "}", "mistral").asked.skip_special);
  EXPECT_TRUE(Prepared(tools + "}", "llama3_json").asked.skip_special);
  EXPECT_TRUE(Prepared(tools + R"(, "tool_choice": "none"})", "hermes").asked.skip_special);
  EXPECT_TRUE(Prepared(chat + "}", "hermes").asked.skip_special);
}

// A model has no row for one more.
TEST_F(RequestPreparerTest, IdsEndWithTheVocabulary) {
  const int vocab = runtime_->model().vocab_size();
  const auto refused = [&](int id) {
    const auto prepared = Prepare(fmt::format(R"({{"prompt": [{}]}})", id));
    return prepared ? "" : prepared.error().param;
  };
  EXPECT_EQ(refused(vocab - 1), "");
  EXPECT_EQ(refused(vocab), "prompt");
}

// As vLLM has it: in a row from the one that is asked for, or any.
TEST_F(RequestPreparerTest, AnswersHaveSeedsOfTheirOwn) {
  const auto seeds = [&](const char* fields) {
    std::set<uint64_t> all;
    for (int i = 0; i < 2; ++i) {
      const auto prepared = Prepared(
          fmt::format(R"({{"messages": [{{"role": "user", "content": "x"}}], "n": 3{}}})", fields));
      for (const Request& request : prepared.requests) all.insert(request.sampling.seed);
    }
    return all;
  };
  EXPECT_EQ(seeds(R"(, "seed": 7)"), (std::set<uint64_t>{7, 8, 9}));
  EXPECT_EQ(seeds("").size(), 6u);
}

TEST_F(RequestPreparerTest, APromptLeavesRoomForItsAnswer) {
  EXPECT_EQ(AnswerTokens(R"({"prompt": [1, 2, 3], "max_tokens": 5})"), 5);
  EXPECT_EQ(Refusal(R"({"prompt": [1, 2, 3], "max_tokens": 6})"),
            "max_tokens: max_tokens of 6 and a prompt of 3 tokens are more than this server's "
            "context of 8 tokens");
  options_.rules.defaults.max_tokens = 3;  // yields
  EXPECT_EQ(AnswerTokens(R"({"prompt": [1, 2, 3]})"), 3);
  EXPECT_TRUE(Prepare(R"({"prompt": [1, 2, 3]})").value().requests[0].max_tokens_yields);
  EXPECT_EQ(AnswerTokens(R"({"prompt": [1, 2, 3, 4, 5, 6, 7]})"), 1);
  EXPECT_EQ(Refusal(R"({"prompt": [1, 2, 3, 4, 5, 6, 7, 8]})"),
            "prompt: the prompt has 8 tokens and leaves no room for an answer: this server's "
            "context is 8 tokens");
  EXPECT_EQ(Refusal(R"({"prompt": ""})"), "prompt: the prompt has no tokens");
  // The prompt alone is asked for.
  const std::string scored = R"(, "max_tokens": 0, "echo": true, "logprobs": 1})";
  EXPECT_EQ(AnswerTokens(R"({"prompt": [1, 2, 3, 4, 5, 6, 7, 8])" + scored), 0);
  EXPECT_TRUE(Prepare(R"({"prompt": [1])" + scored).value().scores_only);
  EXPECT_EQ(Refusal(R"({"prompt": [1, 2, 3, 4, 5, 6, 7, 8, 9])" + scored),
            "prompt: the prompt has 9 tokens: this server's context is 8 tokens");
}

TEST_F(RequestPreparerTest, ATextThatIsTooLongForCertainIsNotTokenized) {
  const size_t most = runtime_->tokenizer().TokensAtLeast(1 << 20);
  const auto refused = Prepare(R"({"prompt": ")" + std::string(1 << 20, 'x') + R"("})");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, "context_length_exceeded");
  EXPECT_EQ(refused.error().message,
            fmt::format("prompt has 1048576 bytes, which are {} tokens at least: more than the "
                        "limit of 7",
                        most));
  // As many tokens as there is room for, one of which is the answer's.
  size_t bytes = 0;
  while (runtime_->tokenizer().TokensAtLeast(bytes + 1) <= 7) ++bytes;
  const auto with = [&](size_t text) {
    return Refusal(R"({"prompt": ")" + std::string(text, 'x') + R"("})");
  };
  EXPECT_THAT(with(bytes + 1), HasSubstr("8 tokens at least"));
  EXPECT_THAT(with(bytes), Not(HasSubstr("at least")));
}

TEST_F(RequestPreparerTest, LogProbabilitiesOfAllAnswersHaveOneLimit) {
  options_.rules.limits.scores_max = 12;
  // One of each token and one alternative: an answer that has no length yields.
  EXPECT_EQ(AnswerTokens(R"({"prompt": [1], "logprobs": 1})"), 6);
  EXPECT_EQ(AnswerTokens(R"({"prompt": [1], "logprobs": 1, "n": 2})"), 3);
  EXPECT_EQ(AnswerTokens(R"({"prompt": [1], "logprobs": 0})"), 7);
  EXPECT_EQ(Refusal(R"({"prompt": [1], "logprobs": 1, "max_tokens": 6})"), "");
  const auto told = HasSubstr("logprobs: logprobs asks for more than the limit of 12");
  EXPECT_THAT(Refusal(R"({"prompt": [1], "logprobs": 1, "max_tokens": 7})"), told);
  EXPECT_EQ(Refusal(R"({"prompt": [[1], [2]], "logprobs": 1, "max_tokens": 3})"), "");
  EXPECT_THAT(Refusal(R"({"prompt": [[1], [2]], "logprobs": 1, "max_tokens": 4})"), told);
  // A prompt that is scored counts.
  EXPECT_EQ(Refusal(R"({"prompt": [1, 2], "logprobs": 1, "max_tokens": 4, "echo": true})"), "");
  EXPECT_THAT(Refusal(R"({"prompt": [1, 2], "logprobs": 1, "max_tokens": 5, "echo": true})"), told);
  // One token is asked for at least.
  EXPECT_THAT(Refusal(R"({"prompt": [1], "logprobs": 1, "n": 7})"), told);
}

TEST_F(RequestPreparerTest, PromptsOfAllAnswersHaveOneLimit) {
  options_.rules.limits.ids_max = 6;
  EXPECT_EQ(Refusal(R"({"prompt": [1, 2, 3], "n": 2})"), "");
  EXPECT_THAT(Refusal(R"({"prompt": [1, 2, 3, 4], "n": 2})"),
              HasSubstr("n: the prompts of all answers have more tokens than the limit of 6"));
  const auto ids = runtime_->tokenizer().Encode("a text", /*add_special=*/true).value();
  options_.rules.limits.ids_max = 2 * ids.size();
  EXPECT_EQ(Refusal(R"({"prompt": ["a text", "a text"]})"), "");
  options_.rules.limits.ids_max = 2 * ids.size() - 1;
  EXPECT_THAT(Refusal(R"({"prompt": ["a text", "a text"]})"),
              HasSubstr("prompt: the prompts of all answers have more tokens"));
  options_.rules.limits.ids_max = ids.size() - 1;  // one answer's has the context for a limit
  EXPECT_EQ(Refusal(R"({"prompt": "a text"})"), "");
}

TEST_F(RequestPreparerTest, AnswersHaveWhatTheirRequestAskedFor) {
  const auto prepared = Prepare(
      R"({"prompt": [[1, 2], [3]], "n": 2, "max_tokens": 4, "min_tokens": 1,
          "stop_token_ids": [5, 6], "logprobs": 2, "cache_salt": "s",
          "kvcake": {"store": false, "policy": "load"}})");
  ASSERT_TRUE(prepared) << prepared.error().message;
  EXPECT_FALSE(prepared->scores_only);
  ASSERT_EQ(prepared->requests.size(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    const Request& request = prepared->requests[i];
    EXPECT_EQ(request.prompt, i < 2 ? std::vector<int32_t>({1, 2}) : std::vector<int32_t>({3}));
    EXPECT_EQ(request.max_tokens, 4);
    EXPECT_FALSE(request.max_tokens_yields);
    EXPECT_EQ(request.min_tokens, 1);
    EXPECT_THAT(request.end_tokens, ElementsAre(5, 6, 0)) << "and the model's own";
    EXPECT_TRUE(request.logprobs);
    EXPECT_EQ(request.top_logprobs, 2);
    EXPECT_FALSE(request.prompt_logprobs);
    EXPECT_EQ(request.tenant, "ann");
    EXPECT_EQ(request.salt, "3:anns");
    EXPECT_FALSE(request.store);
    EXPECT_EQ(request.policy, Policy::kLoad);
  }
  EXPECT_THAT(prepared->prompt_texts, ElementsAre("", "")) << "nobody asked for them";
}

TEST_F(RequestPreparerTest, AnAnswerEndsAtTheEndTokenUnlessItIsIgnored) {
  const auto ends = [&](const std::string& fields) {
    const auto prepared = Prepare(R"({"prompt": [1], "stop_token_ids": [5])" + fields + "}");
    EXPECT_TRUE(prepared) << prepared.error().message;
    return prepared->requests[0].end_tokens;
  };
  EXPECT_THAT(ends(""), ElementsAre(5, 0));
  EXPECT_THAT(ends(R"(, "ignore_eos": true)"), ElementsAre(5));
  EXPECT_THAT(ends(R"(, "max_tokens": 0, "echo": true, "logprobs": 1)"), ElementsAre())
      << "the prompt's own tokens end nothing";
}

TEST_F(RequestPreparerTest, APromptThatIsEchoedIsScoredAndWrittenOut) {
  const auto prepared = Prepare(R"({"prompt": [40, 41, 42], "echo": true, "logprobs": 0})");
  ASSERT_TRUE(prepared) << prepared.error().message;
  EXPECT_TRUE(prepared->requests[0].prompt_logprobs);
  const std::vector<int32_t> ids = {40, 41, 42};
  EXPECT_THAT(prepared->prompt_texts, ElementsAre(runtime_->tokenizer().Decode(ids)));
  const auto unscored = Prepare(R"({"prompt": [40], "echo": true})");
  ASSERT_TRUE(unscored);
  EXPECT_FALSE(unscored->requests[0].prompt_logprobs);
  EXPECT_FALSE(unscored->requests[0].logprobs);
  // Special tokens are no text, unless they are asked for.
  const auto text = [&](const std::string& fields) {
    return Prepare(R"({"prompt": [0, 40], "echo": true)" + fields + "}").value().prompt_texts[0];
  };
  EXPECT_THAT(text(""), Not(HasSubstr("<|endoftext|>")));
  EXPECT_THAT(text(R"(, "skip_special_tokens": false)"), HasSubstr("<|endoftext|>"));
}

TEST_F(RequestPreparerTest, WhatIsWarmedHasOneAnswerOfOneToken) {
  const auto warmed =
      Prepare(R"({"prompt": [1, 2], "n": 3, "max_tokens": 5, "min_tokens": 2, "stream": true})",
              Ask::kWarm);
  ASSERT_TRUE(warmed) << warmed.error().message;
  ASSERT_EQ(warmed->requests.size(), 1u);
  EXPECT_EQ(warmed->requests[0].max_tokens, 1);
  EXPECT_EQ(warmed->requests[0].min_tokens, 0);
  EXPECT_FALSE(warmed->asked.stream);
  const auto chat = Prepare(R"({"messages": [{"role": "user", "content": "xy"}],
                                "tools": [{"function": {"name": "f"}}]})",
                            Ask::kWarm);
  ASSERT_TRUE(chat) << chat.error().message << ": tools need no parser where nothing is answered";
  EXPECT_THAT(chat->prompt_texts, ElementsAre("xy"));
  EXPECT_EQ(Refusal(R"({"prompt": [[1], [2]]})", Ask::kWarm),
            "prompt: prompt must be one to be warmed");
  EXPECT_THAT(Refusal(R"({"messages": [{"role": "user", "content": "xy"}]})", Ask::kCompletion),
              HasSubstr("prompt"));
}

TEST_F(RequestPreparerTest, RefusesWhatTheServerDoesNotHave) {
  EXPECT_EQ(Refusal(R"({"prompt": [1], "model": "alias"})"), "");
  EXPECT_EQ(Refusal(R"({"prompt": [1], "model": "gpt"})"),
            "model: this server has no model \"gpt\", but \"m\"");
  EXPECT_EQ(Prepare(R"({"prompt": [1], "model": "gpt"})").error().status, 404);
  EXPECT_THAT(Refusal(R"({"prompt": [1], "logit_bias": {"999999": 1}})"),
              HasSubstr("logit_bias: logit_bias has the id 999999: the vocabulary has"));
  const std::string tools =
      R"({"messages": [{"role": "user", "content": "x"}], "tools": [{"function": {"name": "f"}}]})";
  EXPECT_THAT(Refusal(tools, Ask::kChat), HasSubstr("tool_choice: tool_choice \"auto\""));
  options_.auto_tool_choice = true;
  EXPECT_EQ(Refusal(tools, Ask::kChat), "");
  const RequestPreparer plain(*runtime_, Fail(ErrorCode::kUnsupported, "no template"), options_);
  const auto refused = plain.Prepare(tools, Ask::kChat, "");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().param, "messages");
  EXPECT_EQ(refused.error().message, "no template");
}

TEST_F(RequestPreparerTest, TokensAreCountedAndWrittenOut) {
  const auto ids = runtime_->tokenizer().Encode("a text", /*add_special=*/true).value();
  EXPECT_EQ(Preparer().TokenizeBody(R"({"prompt": "a text"})").value(),
            fmt::format(R"({{"count":{},"max_model_len":8,"tokens":[{}]}})", ids.size(),
                        fmt::join(ids, ",")));
  EXPECT_EQ(Preparer().DetokenizeBody(R"({"tokens": [0]})").value(),
            R"({"prompt":"<|endoftext|>"})");
  EXPECT_EQ(Preparer().DetokenizeBody(R"({"tokens": [999999]})").error().param, "tokens");
  EXPECT_EQ(Preparer().TokenizeBody(R"({"prompt": "a", "model": "gpt"})").error().status, 404);
  EXPECT_EQ(Preparer().DetokenizeBody(R"({"tokens": [1], "model": "gpt"})").error().status, 404);
  options_.rules.limits.ids_max = ids.size();
  EXPECT_TRUE(Preparer().TokenizeBody(R"({"prompt": "a text"})"));
  options_.rules.limits.ids_max = ids.size() - 1;
  EXPECT_THAT(Preparer().TokenizeBody(R"({"prompt": "a text"})").error().message,
              HasSubstr(fmt::format("more than the limit of {}", ids.size() - 1)));
}

}  // namespace
}  // namespace kvcake
