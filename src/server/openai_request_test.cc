#include "server/openai_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvcake {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

ApiResult<GenerateRequest> Parsed(const std::string& body) {
  const auto json = ParseBody(body);
  if (!json) return tl::unexpected<ApiError>(json.error());
  return ParseCompletion(*json);
}

ApiResult<GenerateRequest> Chat(const std::string& body) {
  const auto json = ParseBody(body);
  if (!json) return tl::unexpected<ApiError>(json.error());
  return ParseChat(*json);
}

// {"prompt": "x", FIELD}
ApiResult<GenerateRequest> With(const std::string& field) {
  return Parsed(R"({"prompt": "x", )" + field + "}");
}
ApiResult<GenerateRequest> ChatWith(const std::string& field) {
  return Chat(R"({"messages": [{"role": "user", "content": "x"}], )" + field + "}");
}

TEST(OpenAiRequestTest, ReadsEveryFieldOfACompletion) {
  const auto request = Parsed(R"({
    "model": "m", "prompt": "Once", "max_tokens": 7, "temperature": 0.5, "top_p": 0.9, "top_k": 40,
    "min_p": 0.05, "repetition_penalty": 1.1, "presence_penalty": 0.25, "frequency_penalty": -0.5,
    "seed": -3, "stop": ["a", "b"], "stop_token_ids": [5], "logprobs": 3, "stream": true,
    "stream_options": {"include_usage": true}, "ignore_eos": true, "add_special_tokens": false,
    "skip_special_tokens": false, "cache_salt": "s",
    "kvcake": {"report": true, "store": false, "policy": "load"}, "user": "u", "whatever": [1]})");
  ASSERT_TRUE(request) << request.error().message;
  EXPECT_EQ(request->model, "m");
  EXPECT_EQ(std::get<std::string>(request->prompt), "Once");
  EXPECT_EQ(request->max_tokens, 7);
  EXPECT_EQ(request->sampling.temperature, 0.5);
  EXPECT_EQ(request->sampling.top_p, 0.9);
  EXPECT_EQ(request->sampling.top_k, 40);
  EXPECT_EQ(request->sampling.min_p, 0.05);
  EXPECT_EQ(request->sampling.repetition_penalty, 1.1);
  EXPECT_EQ(request->sampling.presence_penalty, 0.25);
  EXPECT_EQ(request->sampling.frequency_penalty, -0.5);
  EXPECT_EQ(request->seed, static_cast<uint64_t>(-3));
  EXPECT_THAT(request->stops, ElementsAre("a", "b"));
  EXPECT_THAT(request->stop_tokens, ElementsAre(5));
  EXPECT_TRUE(request->logprobs);
  EXPECT_EQ(request->top_logprobs, 3);
  EXPECT_TRUE(request->stream);
  EXPECT_TRUE(request->include_usage);
  EXPECT_TRUE(request->ignore_eos);
  EXPECT_EQ(request->add_special, false);
  EXPECT_FALSE(request->skip_special);
  EXPECT_EQ(request->cache_salt, "s");
  EXPECT_TRUE(request->kvcake.report);
  EXPECT_FALSE(request->kvcake.store);
  EXPECT_EQ(request->kvcake.policy, Policy::kLoad);
}

TEST(OpenAiRequestTest, DefaultsAreOpenAis) {
  const auto request = Parsed(R"({"prompt": "x", "temperature": null, "stop": null})");
  EXPECT_EQ(request.value().max_tokens, 16);
  EXPECT_EQ(Parsed(R"({"prompt": "x", "echo": true, "max_tokens": 0})").value().max_tokens, 0);
  EXPECT_EQ(request->sampling.temperature, 1);
  EXPECT_EQ(request->sampling.top_p, 1);
  EXPECT_FALSE(request->seed);
  EXPECT_FALSE(request->logprobs);
  EXPECT_TRUE(request->kvcake.store);
  EXPECT_FALSE(Chat(R"({"messages": [{"role": "user", "content": "x"}]})").value().max_tokens);
}

TEST(OpenAiRequestTest, PromptsAreTextsOrIdsAloneOrInAnArray) {
  const auto ids = [](const char* body) {
    return std::get<std::vector<int32_t>>(Parsed(body).value().prompt);
  };
  EXPECT_THAT(ids(R"({"prompt": [1, 2]})"), ElementsAre(1, 2));
  EXPECT_THAT(ids(R"({"prompt": [[1, 2]]})"), ElementsAre(1, 2));
  EXPECT_EQ(std::get<std::string>(Parsed(R"({"prompt": ["x"]})").value().prompt), "x");
  for (const char* bad :
       {R"({})", R"({"prompt": []})", R"({"prompt": {}})", R"({"prompt": 1})",
        R"({"prompt": ["a", "b"]})", R"({"prompt": [[1], [2]]})", R"({"prompt": [1, "a"]})",
        R"({"prompt": [-1]})", R"({"prompt": [4294967296]})", R"({"prompt": [1.5]})",
        R"({"prompt": [[]]})", R"({"prompt": [null]})"}) {
    const auto request = Parsed(bad);
    ASSERT_FALSE(request) << bad;
    EXPECT_EQ(request.error().param, "prompt") << bad;
    EXPECT_EQ(request.error().status, 400);
  }
}

TEST(OpenAiRequestTest, ErrorsNameTheField) {
  const std::pair<const char*, const char*> cases[] = {
      {R"("temperature": "hot")", "temperature"},
      {R"("temperature": -0.1)", "temperature"},
      {R"("top_p": 0)", "top_p"},
      {R"("top_p": 1.01)", "top_p"},
      {R"("min_p": 2)", "min_p"},
      {R"("top_k": -2)", "top_k"},
      {R"("top_k": 1.5)", "top_k"},
      {R"("repetition_penalty": 0)", "repetition_penalty"},
      {R"("presence_penalty": 2.1)", "presence_penalty"},
      {R"("frequency_penalty": -3)", "frequency_penalty"},
      {R"("seed": 1.5)", "seed"},
      {R"("max_tokens": 0)", "max_tokens"},
      {R"("max_tokens": 99999999999)", "max_tokens"},
      {R"("max_tokens": 18446744073709551615)", "max_tokens"},
      {R"("stop": 1)", "stop"},
      {R"("stop": ["a", 1])", "stop"},
      {R"("logprobs": 21)", "logprobs"},
      {R"("logprobs": true)", "logprobs"},
      {R"("stream": "yes")", "stream"},
      {R"("stream_options": {"include_usage": true})", "stream_options"},
      {R"("stream": true, "stream_options": {"include_usage": 1})", "stream_options.include_usage"},
      {R"("stream": true, "stream_options": 3)", "stream_options"},
      {R"("ignore_eos": 1)", "ignore_eos"},
      {R"("cache_salt": 1)", "cache_salt"},
      {R"("model": 1)", "model"},
      {R"("kvcake": 1)", "kvcake"},
      {R"("kvcake": {"policy": "magic"})", "kvcake.policy"},
      {R"("kvcake": {"store": "no"})", "kvcake.store"},
      {R"("stop_token_ids": ["a"])", "stop_token_ids"},
  };
  for (const auto& [field, param] : cases) {
    const auto request = With(field);
    ASSERT_FALSE(request) << field;
    EXPECT_EQ(request.error().param, param) << field;
    EXPECT_THAT(request.error().message, HasSubstr(param)) << field;
    EXPECT_EQ(request.error().status, 400);
  }
  std::string stops = R"("stop": ["a")";
  for (int i = 0; i < 16; ++i) stops += ", \"a\"";
  EXPECT_EQ(With(stops + "]").error().param, "stop");
}

TEST(OpenAiRequestTest, KnownFieldsThatWouldChangeTheAnswerAreRefused) {
  for (const char* field :
       {R"("n": 2)", R"("best_of": 3)", R"("logit_bias": {"1": 2})", R"("suffix": "x")",
        R"("response_format": {"type": "json_object"})", R"("min_tokens": 3)",
        R"("guided_regex": "a+")", R"("use_beam_search": true)", R"("prompt_logprobs": 1)",
        R"("include_stop_str_in_output": true)"}) {
    const auto request = With(field);
    ASSERT_FALSE(request) << field;
    EXPECT_EQ(request.error().code, "unsupported_parameter");
    EXPECT_THAT(field, HasSubstr("\"" + request.error().param + "\""));
  }
  for (const char* field :
       {R"("tools": [{"type": "function"}])", R"("tool_choice": "auto")", R"("functions": [{}])",
        R"("response_format": {"type": "json_schema"})", R"("n": 2)", R"("modalities": ["audio"])",
        R"("reasoning_effort": "low")"}) {
    const auto request = ChatWith(field);
    ASSERT_FALSE(request) << field;
    EXPECT_THAT(field, HasSubstr("\"" + request.error().param + "\""));
  }
  // What asks for nothing is fine.
  EXPECT_TRUE(With(R"("n": 1, "best_of": 1, "logit_bias": {}, "suffix": null, "logit_bias": null,
                      "response_format": {"type": "text"}, "min_tokens": 0,
                      "use_beam_search": false)"));
  EXPECT_TRUE(ChatWith(R"("tools": [], "tool_choice": "none", "modalities": ["text"], "n": 1)"));
}

TEST(OpenAiRequestTest, ReadsConversations) {
  const auto request = Chat(R"({"messages": [
      {"role": "developer", "content": "Be good."},
      {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
      {"role": "assistant", "content": "c", "tool_calls": null, "name": "x"}],
      "max_completion_tokens": 9, "logprobs": true, "top_logprobs": 2})");
  ASSERT_TRUE(request) << request.error().message;
  const auto& messages = std::get<std::vector<ChatMessage>>(request->prompt);
  ASSERT_EQ(messages.size(), 3u);
  EXPECT_EQ(messages[0].role, "system");
  EXPECT_EQ(messages[1].content, "a\nb");  // as vLLM joins them
  EXPECT_EQ(messages[2].content, "c");
  EXPECT_EQ(request->max_tokens, 9);
  EXPECT_EQ(request->top_logprobs, 2);
}

TEST(OpenAiRequestTest, ErrorsNameTheMessage) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({})", "messages"},
      {R"({"messages": []})", "messages"},
      {R"({"messages": "hi"})", "messages"},
      {R"({"messages": ["hi"]})", "messages[0]"},
      {R"({"messages": [{"role": "user", "content": "x"}, {"role": "pope", "content": "x"}]})",
       "messages[1].role"},
      {R"({"messages": [{"role": "tool", "content": "x"}]})", "messages[0].role"},
      {R"({"messages": [{"content": "x"}]})", "messages[0].role"},
      {R"({"messages": [{"role": "user"}]})", "messages[0].content"},
      {R"({"messages": [{"role": "user", "content": 3}]})", "messages[0].content"},
      {R"({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]})",
       "messages[0].content[0].type"},
      {R"({"messages": [{"role": "user", "content": [{"type": "text"}]}]})",
       "messages[0].content[0].text"},
      {R"({"messages": [{"role": "assistant", "content": "", "tool_calls": [{}]}]})",
       "messages[0].tool_calls"},
  };
  for (const auto& [body, param] : cases) {
    const auto request = Chat(body);
    ASSERT_FALSE(request) << body;
    EXPECT_EQ(request.error().param, param) << body;
  }
  EXPECT_EQ(ChatWith(R"("top_logprobs": 2)").error().param, "top_logprobs");
  EXPECT_EQ(ChatWith(R"("logprobs": 2)").error().param, "logprobs");
}

TEST(OpenAiRequestTest, BodiesThatAreNoJsonAreRefused) {
  for (const std::string& body :
       {std::string(""), std::string("{"), std::string("[1,"),
        std::string("{\"prompt\": \"\xff\"}"), std::string("{\"prompt\": \"\xed\xa0\x80\"}"),
        std::string(1 << 20, '['), std::string(R"({"prompt": "x", "temperature": 1e999})"),
        std::string("{\"a\":1}x"), std::string("nan")}) {
    const auto request = Parsed(body);
    ASSERT_FALSE(request) << body.substr(0, 50);
    EXPECT_EQ(request.error().status, 400);
  }
  for (const char* body : {"[]", "1", "\"x\"", "null", "true"}) {
    EXPECT_THAT(Parsed(body).error().message, HasSubstr("must be a JSON object")) << body;
  }
  EXPECT_THAT(Parsed(std::string(100, '[') + std::string(100, ']')).error().message,
              HasSubstr("nested deeper"));
}

TEST(OpenAiRequestTest, ReadsWhatTokenizersAreAsked) {
  const auto text =
      ParseTokenize(ParseBody(R"({"prompt": "x", "add_special_tokens": false})").value());
  EXPECT_EQ(std::get<std::string>(text.value().prompt), "x");
  EXPECT_EQ(text->add_special, false);
  const auto chat =
      ParseTokenize(ParseBody(R"({"messages": [{"role": "user", "content": "x"}]})").value());
  EXPECT_EQ(std::get<std::vector<ChatMessage>>(chat.value().prompt).size(), 1u);
  EXPECT_THAT(ParseDetokenize(ParseBody(R"({"tokens": [3, 4]})").value()).value().tokens,
              ElementsAre(3, 4));
  EXPECT_EQ(ParseDetokenize(ParseBody("{}").value()).error().param, "tokens");
  EXPECT_EQ(ParseDetokenize(ParseBody(R"({"tokens": [-1]})").value()).error().param, "tokens");
}

TEST(OpenAiRequestTest, IdsAreBounded) {
  const RequestLimits limits{.ids_max = 3};
  const auto prompt = [&](const char* text) {
    return ParseCompletion(nlohmann::json::parse(text), limits);
  };
  EXPECT_TRUE(prompt(R"({"prompt": [1, 2, 3]})"));
  EXPECT_EQ(prompt(R"({"prompt": [1, 2, 3, 4]})").error().param, "prompt");
  EXPECT_EQ(prompt(R"({"prompt": [[1, 2, 3, 4]]})").error().param, "prompt");
  const auto tokens = [&](const char* text) {
    return ParseDetokenize(nlohmann::json::parse(text), limits);
  };
  EXPECT_TRUE(tokens(R"({"tokens": [1, 2, 3]})"));
  EXPECT_EQ(tokens(R"({"tokens": [1, 2, 3, 4]})").error().param, "tokens");
}

}  // namespace
}  // namespace kvcake
