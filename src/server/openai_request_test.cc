#include "server/openai_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/openai_request_testing.h"

namespace kvcake {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

ApiResult<GenerateRequest> Parsed(const std::string& body) {
  const auto read = ParseBody(body);
  if (!read) return tl::unexpected<ApiError>(read.error());
  return ParseCompletion(*read);
}

// {"prompt": "x", FIELD}
ApiResult<GenerateRequest> With(const std::string& field) {
  return Parsed(R"({"prompt": "x", )" + field + "}");
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
  EXPECT_EQ(std::get<std::string>(request->prompts.at(0)), "Once");
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
  EXPECT_FALSE(
      ParsedChat(R"({"messages": [{"role": "user", "content": "x"}]})").value().max_tokens);
}

TEST(OpenAiRequestTest, PromptsAreTextsOrIdsAloneOrInAnArray) {
  const auto ids = [](const char* body) {
    return std::get<std::vector<int32_t>>(Parsed(body).value().prompts.at(0));
  };
  EXPECT_THAT(ids(R"({"prompt": [1, 2]})"), ElementsAre(1, 2));
  EXPECT_THAT(ids(R"({"prompt": [[1, 2]]})"), ElementsAre(1, 2));
  EXPECT_EQ(std::get<std::string>(Parsed(R"({"prompt": ["x"]})").value().prompts.at(0)), "x");
  for (const char* bad :
       {R"({})", R"({"prompt": []})", R"({"prompt": {}})", R"({"prompt": 1})",
        R"({"prompt": ["a", 1]})", R"({"prompt": [[1], []]})", R"({"prompt": [1, "a"]})",
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
      {R"("presence_penalty": -2.1)", "presence_penalty"},
      {R"("frequency_penalty": 2.1)", "frequency_penalty"},
      {R"("frequency_penalty": -3)", "frequency_penalty"},
      {R"("seed": 1.5)", "seed"},
      {R"("max_tokens": 0)", "max_tokens"},
      {R"("max_tokens": 99999999999)", "max_tokens"},
      {R"("max_tokens": 18446744073709551615)", "max_tokens"},
      {R"("stop": 1)", "stop"},
      {R"("stop": ["a", 1])", "stop"},
      {R"("stop": ["a", null])", "stop"},
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
      {R"("kvcake": {"polcy": "load"})", "kvcake.polcy"},
      {R"("kvcake": {"Store": null})", "kvcake.Store"},
      {R"("stop_token_ids": ["a"])", "stop_token_ids"},
  };
  for (const auto& [field, param] : cases) {
    const auto request = With(field);
    ASSERT_FALSE(request) << field;
    EXPECT_EQ(request.error().param, param) << field;
    EXPECT_THAT(request.error().message, HasSubstr(param)) << field;
    EXPECT_EQ(request.error().status, 400);
  }
  EXPECT_THAT(With(R"("kvcake": {"polcy": "load"})").error().message,
              HasSubstr("report, store or policy"));
  EXPECT_TRUE(With(R"("presence_penalty": -2, "frequency_penalty": -2)"));
  EXPECT_TRUE(With(R"("presence_penalty": 2, "frequency_penalty": 2)"));
  const auto unscored = ChatWith(R"("top_logprobs": 2)");
  ASSERT_FALSE(unscored);
  EXPECT_EQ(unscored.error().message, "top_logprobs needs logprobs: true");
  std::string stops = R"("stop": ["a")";
  for (int i = 0; i < 16; ++i) stops += ", \"a\"";
  EXPECT_EQ(With(stops + "]").error().param, "stop");
}

// Whichever bound is missed.
TEST(OpenAiRequestTest, ErrorsTellTheWholeRange) {
  for (const char* bad : {"0", "-1", "1.5", "\"x\""}) {
    EXPECT_THAT(With(std::string("\"top_p\": ") + bad).error().message,
                HasSubstr("must be a number above 0 and at most 1"));
  }
  for (const char* bad : {"0", "-1", "\"x\""}) {
    EXPECT_THAT(With(std::string("\"repetition_penalty\": ") + bad).error().message,
                testing::EndsWith("must be a number above 0"));
  }
}

TEST(OpenAiRequestTest, KnownFieldsThatWouldChangeTheAnswerAreRefused) {
  for (const char* field :
       {R"("best_of": 3)", R"("suffix": "x")", R"("return_token_ids": true)",
        R"("response_format": {"type": "json_object"})", R"("priority": 3)",
        R"("bad_words": ["x"])", R"("guided_regex": "a+")", R"("use_beam_search": true)",
        R"("prompt_logprobs": 1)", R"("include_stop_str_in_output": true)"}) {
    const auto request = With(field);
    ASSERT_FALSE(request) << field;
    EXPECT_EQ(request.error().code, "unsupported_parameter");
    EXPECT_THAT(field, HasSubstr("\"" + request.error().param + "\""));
  }
  for (const char* field :
       {R"("functions": [{}])", R"("response_format": {"type": "json_schema"})",
        R"("modalities": ["audio"])", R"("verbosity": "low")", R"("chat_template": "{{ 1 }}")",
        R"("tool_choice": "required")", R"("tool_choice": {"type": "function"})"}) {
    const auto request = ChatWith(field);
    ASSERT_FALSE(request) << field;
    EXPECT_EQ(request.error().code, "unsupported_parameter");
    EXPECT_THAT(field, HasSubstr("\"" + request.error().param + "\""));
  }
  // What asks for nothing is fine.
  EXPECT_TRUE(With(R"("n": 1, "best_of": 1, "logit_bias": {}, "suffix": null, "bad_words": [],
                      "response_format": {"type": "text"}, "min_tokens": 0, "guided_regex": "",
                      "use_beam_search": false, "spaces_between_special_tokens": true)"));
  EXPECT_TRUE(ChatWith(R"("tools": [], "tool_choice": "none", "modalities": ["text"], "n": 1)"));
  EXPECT_TRUE(ChatWith(R"("tools": [], "tool_choice": "auto")"));
}

TEST(OpenAiRequestTest, TokenizingRefusesWhatItWouldNotHonour) {
  const auto refused = [](const char* field, const char* value) -> std::string {
    const std::string body = fmt::format(R"({{"prompt": "x", "{}": {}}})", field, value);
    const auto request = ParseTokenize(ParseBody(body).value());
    return request ? "" : request.error().param;
  };
  for (const char* field : {"return_token_strs", "chat_template"}) {
    EXPECT_EQ(refused(field, "true"), field);
    EXPECT_EQ(refused(field, "false"), "");
  }
}

TEST(OpenAiRequestTest, SeveralPromptsAndAnswers) {
  const auto texts = Parsed(R"({"prompt": ["a", "b", [3, 4]], "n": 2})");
  ASSERT_EQ(texts.value().prompts.size(), 3u);
  EXPECT_EQ(std::get<std::string>(texts->prompts[1]), "b");
  EXPECT_THAT(std::get<std::vector<int32_t>>(texts->prompts[2]), ElementsAre(3, 4));
  EXPECT_EQ(texts->n, 2);
  EXPECT_EQ(ChatWith(R"("n": 3)").value().n, 3);
  const auto limited = [](const char* text) {
    const RequestRules rules{.limits = {.ids_max = 4, .choices_max = 4}};
    const auto request = ParseCompletion(ParseBody(text).value(), rules);
    return request ? "" : request.error().param;
  };
  EXPECT_EQ(limited(R"({"prompt": ["a", "b"], "n": 2})"), "");
  EXPECT_EQ(limited(R"({"prompt": ["a", "b"], "n": 3})"), "n");
  EXPECT_EQ(limited(R"({"prompt": "a", "n": 2147483647})"), "n");
  EXPECT_EQ(limited(R"({"prompt": ["a", "b", "c", "d"]})"), "");
  EXPECT_EQ(limited(R"({"prompt": ["a", "b", "c", "d", "e"]})"), "prompt");
  EXPECT_EQ(limited(R"({"prompt": [[1, 2], [3, 4]]})"), "");
  EXPECT_EQ(limited(R"({"prompt": [[1, 2], [3, 4, 5]]})"), "prompt");
  EXPECT_EQ(With(R"("n": 0)").error().param, "n");
}

TEST(OpenAiRequestTest, BiasesAndTheFewestTokens) {
  const auto request = With(R"("logit_bias": {"5": -100, "7": 2.5}, "min_tokens": 4)");
  ASSERT_TRUE(request) << request.error().message;
  EXPECT_THAT(request->sampling.logit_bias, ElementsAre(std::pair(5, -100.f), std::pair(7, 2.5f)));
  EXPECT_EQ(request->min_tokens, 4);
  const std::pair<const char*, const char*> cases[] = {
      {R"("logit_bias": [1])", "logit_bias"},
      {R"("logit_bias": {"x": 1})", "logit_bias.x"},
      {R"("logit_bias": {"-1": 1})", "logit_bias.-1"},
      {R"("logit_bias": {"1.5": 1})", "logit_bias.1.5"},
      {R"("logit_bias": {"99999999999": 1})", "logit_bias.99999999999"},
      {R"("logit_bias": {"1": 101})", "logit_bias.1"},
      {R"("logit_bias": {"1": "a"})", "logit_bias.1"},
      {R"("min_tokens": -1)", "min_tokens"},
      {R"("min_tokens": 9, "max_tokens": 8)", "min_tokens"},
      {R"("min_tokens": 17)", "min_tokens"},
  };
  for (const auto& [field, param] : cases) EXPECT_EQ(With(field).error().param, param) << field;
}

TEST(OpenAiRequestTest, TextsAndBiasesAreBounded) {
  const RequestRules rules{.limits = {.stops_max = 2, .stop_bytes_max = 3, .biases_max = 2}};
  const auto param = [&](const std::string& field) {
    const std::string body = R"({"prompt": "x", )" + field + "}";
    const auto request = ParseCompletion(ParseBody(body).value(), rules);
    return request ? "" : request.error().param;
  };
  EXPECT_EQ(param(R"("stop": "abc")"), "");
  EXPECT_EQ(param(R"("stop": ["a", "b"])"), "");
  EXPECT_EQ(param(R"("stop": "abcd")"), "stop");
  EXPECT_EQ(param(R"("stop": ["a", "abcd"])"), "stop");
  EXPECT_EQ(param(R"("stop_token_ids": [1, 2])"), "");
  EXPECT_EQ(param(R"("stop_token_ids": [1, 2, 3])"), "stop_token_ids");
  EXPECT_EQ(param(R"("logit_bias": {"1": 1, "2": 1})"), "");
  EXPECT_EQ(param(R"("logit_bias": {"1": 1, "2": 1, "3": 1})"), "logit_bias");
  for (const char* const name : {"cache_salt", "model"}) {
    const auto of = [name](size_t bytes) {
      return fmt::format(R"("{}": "{}")", name, std::string(bytes, 'x'));
    };
    EXPECT_EQ(param(of(4096)), "");
    EXPECT_EQ(param(of(4097)), name);
  }
}

TEST(OpenAiRequestTest, ModelsHaveDefaultsOfTheirOwn) {
  const RequestRules rules{
      .defaults = {.sampling = {.temperature = 0.6, .top_k = 20}, .max_tokens = 100}};
  const auto parsed = [&](const char* text) {
    return ParseCompletion(ParseBody(text).value(), rules).value();
  };
  EXPECT_EQ(parsed(R"({"prompt": "x"})").sampling.temperature, 0.6);
  EXPECT_EQ(parsed(R"({"prompt": "x", "temperature": 0})").sampling.temperature, 0);
  EXPECT_EQ(parsed(R"({"prompt": "x", "temperature": 0})").sampling.top_k, 20);
  EXPECT_EQ(parsed(R"({"prompt": "x"})").max_tokens, 16);
  EXPECT_EQ(parsed(R"({"prompt": "x", "max_tokens": 1000})").max_tokens, 100);
  const auto chat =
      ParseChat(ParseBody(R"({"messages": [{"role": "user", "content": "x"}]})").value(), rules);
  EXPECT_EQ(chat.value().max_tokens, 100);
}

TEST(OpenAiRequestTest, ReadsConversations) {
  const auto request = ParsedChat(R"({"messages": [
      {"role": "developer", "content": "Be good."},
      {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
      {"role": "assistant", "content": "c", "tool_calls": null, "name": "x"}],
      "max_completion_tokens": 9, "logprobs": true, "top_logprobs": 2})");
  ASSERT_TRUE(request) << request.error().message;
  const auto& messages = std::get<ChatPrompt>(request->prompts.at(0)).messages;
  ASSERT_EQ(messages.size(), 3u);
  EXPECT_EQ(messages[0]["role"], "system");
  EXPECT_EQ(messages[1]["content"][1]["text"], "b");
  EXPECT_EQ(messages[2]["content"], "c");
  EXPECT_FALSE(messages[2].contains("tool_calls"));
  EXPECT_EQ(request->max_tokens, 9);
  EXPECT_EQ(request->top_logprobs, 2);
  EXPECT_EQ(ChatWith(R"("max_completion_tokens": 9, "max_tokens": 4)")->max_tokens, 9);
}

// As a template has to see them: arguments as objects, members in the client's order.
TEST(OpenAiRequestTest, ReadsToolsAndTheirCalls) {
  const auto request = ParsedChat(R"({"messages": [
      {"role": "user", "content": "x"},
      {"role": "assistant", "content": null, "reasoning_content": "hm", "tool_calls": [
          {"id": "a", "type": "function",
           "function": {"name": "f", "arguments": "{\"z\": 1, \"b\": {\"y\": 2, \"a\": 3}}"}},
          {"id": "b", "function": {"arguments": {"q": 1}, "name": "g"}},
          {"function": {"name": "h"}}]},
      {"role": "tool", "tool_call_id": "a", "content": "42"}, {"role": "tool", "content": null}],
    "tools": [{"type": "function", "function": {"name": "f", "description": "d",
               "parameters": {"type": "object", "properties": {"z": {}, "b": {}}}}}],
    "documents": [{"title": "t", "text": "x"}], "chat_template_kwargs": {"z": 1, "a": true},
    "reasoning_effort": "low", "parallel_tool_calls": false, "include_reasoning": false})");
  ASSERT_TRUE(request) << request.error().message;
  const auto& prompt = std::get<ChatPrompt>(request->prompts.at(0));
  const auto& call = prompt.messages[1]["tool_calls"];
  EXPECT_EQ(call[0]["function"]["arguments"].dump(), R"({"z":1,"b":{"y":2,"a":3}})");
  EXPECT_EQ(call[1]["function"]["arguments"].dump(), R"({"q":1})");
  EXPECT_EQ(call[2]["function"]["arguments"].dump(), "{}");
  EXPECT_TRUE(prompt.messages[1]["content"].is_null());
  EXPECT_EQ(prompt.messages[1]["reasoning_content"], "hm");
  EXPECT_EQ(prompt.messages[2]["tool_call_id"], "a");
  EXPECT_EQ(prompt.tools[0]["function"]["parameters"]["properties"].dump(), R"({"z":{},"b":{}})");
  EXPECT_EQ(prompt.documents[0].dump(), R"({"title":"t","text":"x"})");
  EXPECT_EQ(prompt.kwargs.dump(), R"({"z":1,"a":true,"reasoning_effort":"low"})");
  EXPECT_EQ(request->tool_choice, ToolChoice::kAuto);
  EXPECT_FALSE(request->parallel_tool_calls);
  EXPECT_FALSE(request->include_reasoning);
}

TEST(OpenAiRequestTest, ErrorsNameTheTool) {
  const std::pair<const char*, const char*> cases[] = {
      {R"("tools": {"a": 1})", "tools"},
      {R"("tools": [3])", "tools[0]"},
      {R"("tools": [{"type": "custom"}])", "tools[0].type"},
      {R"("tools": [{"type": "function"}])", "tools[0].function"},
      {R"("tools": [{"function": {}}])", "tools[0].function.name"},
      {R"("tools": [{"function": {"name": "f", "strict": true}}])", "tools[0].function.strict"},
      {R"("tool_choice": "auto")", "tool_choice"},
      {R"("tool_choice": "always")", "tool_choice"},
      {R"("tool_choice": 3)", "tool_choice"},
      {R"("documents": ["x"])", "documents[0]"},
      {R"("chat_template_kwargs": [1])", "chat_template_kwargs"},
      {R"("continue_final_message": true, "add_generation_prompt": true)",
       "continue_final_message"},
  };
  for (const auto& [field, param] : cases) {
    const auto request = ChatWith(field);
    ASSERT_FALSE(request) << field;
    EXPECT_EQ(request.error().param, param) << field;
  }
  const auto none = ChatWith(R"("tools": [{"function": {"name": "f"}}], "tool_choice": "none")");
  EXPECT_EQ(none.value().tool_choice, ToolChoice::kNone);
  EXPECT_EQ(std::get<ChatPrompt>(none->prompts[0]).tools.size(), 1u);
  const auto goes_on = ChatWith(R"("continue_final_message": true)");
  EXPECT_FALSE(std::get<ChatPrompt>(goes_on.value().prompts[0]).add_generation_prompt);
  // To look a member of an object up takes as many steps as it has members.
  std::string wide = R"("chat_template_kwargs": {"a": [{"0": 0)";
  for (int i = 1; i < 2000; ++i) wide += ",\"" + std::to_string(i) + "\":0";
  EXPECT_EQ(ChatWith(wide + "}]}").error().param, "chat_template_kwargs");
}

// Some clients know no other numbers, and vLLM takes them so.
TEST(OpenAiRequestTest, WholeNumbersMayBeWrittenWithAPoint) {
  const auto request = With(R"("max_tokens": 7.0, "n": 2.0, "top_k": -1.0, "seed": -42.0,
      "logprobs": 3.0, "min_tokens": 1e0)");
  ASSERT_TRUE(request) << request.error().message;
  EXPECT_EQ(request->max_tokens, 7);
  EXPECT_EQ(request->n, 2);
  EXPECT_EQ(request->sampling.top_k, 0);
  EXPECT_EQ(request->seed, static_cast<uint64_t>(-42));
  EXPECT_EQ(request->top_logprobs, 3);
  EXPECT_EQ(request->min_tokens, 1);
  EXPECT_EQ(With(R"("seed": -1)")->seed, std::nullopt);
  EXPECT_EQ(With(R"("seed": -1.0)")->seed, std::nullopt);
  EXPECT_EQ(With(R"("seed": 18446744073709551615)")->seed, static_cast<uint64_t>(-1));
  for (const char* const field :
       {R"("max_tokens": 7.5)", R"("max_tokens": 1e10)", R"("n": 0.0)", R"("logprobs": 20.5)",
        R"("seed": 0.5)", R"("seed": 1e30)", R"("seed": 9007199254740993.0)"}) {
    EXPECT_FALSE(With(field)) << field;
  }
}

// The JSON parser makes floats of integers beyond 64 bits, and a template would print these.
TEST(OpenAiRequestTest, IntegersOfAChatThatNoTypeHoldsAreRefused) {
  const std::string call = R"("messages": [{"role": "assistant", "tool_calls": [{"function":
      {"name": "f", "arguments": )";
  const std::pair<std::string, const char*> cases[] = {
      {R"("tools": [{"function": {"name": "f", "parameters": {"maximum": 18446744073709551616}}}])",
       "tools"},
      {R"("chat_template_kwargs": {"a": [1, -9223372036854775809]})", "chat_template_kwargs"},
      {R"("documents": [{"a": 1e20, "b":100000000000000000000}])", "documents"},
      {R"("documents": [{"a": "an \" inch", "b": 100000000000000000000}])", "documents"},
      {call + R"({"wei": 100000000000000000000}}}]}])", "messages"},
      {call + R"("{\"wei\": 100000000000000000000}"}}]}])",
       "messages[0].tool_calls[0].function.arguments"},
  };
  for (const auto& [field, param] : cases) {
    const auto request = ChatWith(field);
    ASSERT_FALSE(request) << field;
    EXPECT_EQ(request.error().param, param) << field;
    EXPECT_THAT(request.error().message, HasSubstr("an integer beyond 64 bits"));
  }
  EXPECT_TRUE(ChatWith(R"("documents": [{"a": 1e20, "b": 1.7976931348623157E308, "c": -1e300}])"));
  EXPECT_TRUE(ChatWith(R"("documents": [{"a": 1e20, "b": "100000000000000000000"}])"));
  EXPECT_TRUE(ChatWith(R"("documents": [{"a": 1e20, "b": "\"100000000000000000000"}])"));
  EXPECT_TRUE(ChatWith(R"("unknown": 100000000000000000000, "seed": 18446744073709551615)"));
}

// All of a chat's body is parsed with its order, not only what is kept of it.
TEST(OpenAiRequestTest, ObjectsOfAChatAreBoundedWhereverTheyStand) {
  std::string wide = "{\"0\": 0";
  for (int i = 1; i < 2000; ++i) wide += ",\"" + std::to_string(i) + "\":0";
  wide += '}';
  std::string written = wide;
  for (size_t at = 0; (at = written.find('"', at)) != std::string::npos; at += 2) {
    written.insert(at, 1, '\\');
  }
  const std::string fields[] = {
      R"("unknown": )" + wide,
      wide.substr(1, wide.size() - 2),
      R"("documents": )" + wide + R"(, "documents": [])",
      R"("chat_template_kwargs": {"a": )" + wide + R"(, "a": 1})",
      R"("messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f",
          "arguments": "{\"a\": )" +
          written + R"(, \"a\": 1}"}}]}])",
  };
  for (const std::string& field : fields) {
    const auto request = ChatWith(field);
    ASSERT_FALSE(request) << field.substr(0, 80);
    EXPECT_THAT(request.error().message, HasSubstr("an object with more than 1024 members"));
  }
  EXPECT_TRUE(ChatWith(R"("unknown": {"a": ":\":{:", "b": "::"})"));
  EXPECT_TRUE(With(R"("unknown": )" + wide));
}

// The parser takes a null byte for the text's end: what is behind it belongs to no object.
TEST(OpenAiRequestTest, WhatIsBehindANullByteIsNotCounted) {
  for (const std::string json : {"22", "{}", R"({"messages": []})"}) {
    const std::string text = json + std::string(1, '\0') + ":}]:{:\"";
    const auto body = ParseBody(text);
    ASSERT_TRUE(body) << json;
    EXPECT_FALSE(ParseChat(*body)) << json;
  }
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
  EXPECT_EQ(std::get<ChatPrompt>(chat.value().prompt).messages.size(), 1u);
  EXPECT_THAT(ParseDetokenize(ParseBody(R"({"tokens": [3, 4]})").value())->tokens,
              ElementsAre(3, 4));
  EXPECT_EQ(ParseDetokenize(ParseBody("{}").value()).error().param, "tokens");
  EXPECT_EQ(ParseDetokenize(ParseBody(R"({"tokens": [-1]})").value()).error().param, "tokens");
}

TEST(OpenAiRequestTest, IdsAreBounded) {
  const RequestLimits limits{.ids_max = 3};
  const auto prompt = [&](const char* text) {
    return ParseCompletion(ParseBody(text).value(), {.limits = limits});
  };
  EXPECT_TRUE(prompt(R"({"prompt": [1, 2, 3]})"));
  EXPECT_EQ(prompt(R"({"prompt": [1, 2, 3, 4]})").error().param, "prompt");
  EXPECT_EQ(prompt(R"({"prompt": [[1, 2, 3, 4]]})").error().param, "prompt");
  const auto tokens = [&](const char* text) {
    return ParseDetokenize(ParseBody(text).value(), limits);
  };
  EXPECT_TRUE(tokens(R"({"tokens": [1, 2, 3]})"));
  EXPECT_EQ(tokens(R"({"tokens": [1, 2, 3, 4]})").error().param, "tokens");
}

}  // namespace
}  // namespace kvcake
