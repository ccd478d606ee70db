#include "server/answer_parser.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace kvcake {
namespace {

using nlohmann::json;

struct ParsedCall {
  std::string id, name, arguments;
  bool operator==(const ParsedCall&) const = default;
};
struct ParsedAnswer {
  std::string content, reasoning;
  std::vector<ParsedCall> calls = {};
  bool operator==(const ParsedAnswer&) const = default;
};

void Add(const AnswerDelta& delta, ParsedAnswer* answer) {
  answer->content += delta.content;
  answer->reasoning += delta.reasoning;
  for (const ToolCallDelta& call : delta.calls) {
    if (!call.id.empty()) {
      EXPECT_EQ(call.index, answer->calls.size());
      EXPECT_FALSE(call.name.empty());
      answer->calls.push_back({call.id, call.name, ""});
    }
    ASSERT_LT(call.index, answer->calls.size());
    answer->calls[call.index].arguments += call.arguments;
  }
}

ParsedAnswer Whole(const AnswerParser::Options& options, std::string_view text) {
  ParsedAnswer answer;
  Add(AnswerParser(options).Take(text, true), &answer);
  return answer;
}

// What the whole text gives, once it is the same however it is split in two, and by characters.
ParsedAnswer Parsed(const AnswerParser::Options& options, std::string_view text) {
  const ParsedAnswer whole = Whole(options, text);
  for (size_t at = 0; at <= text.size(); ++at) {
    ParsedAnswer split;
    AnswerParser parser(options);
    Add(parser.Take(text.substr(0, at), false), &split);
    Add(parser.Take(text.substr(at), true), &split);
    EXPECT_EQ(split, whole) << text << " split at " << at;
  }
  ParsedAnswer by_character;
  AnswerParser parser(options);
  for (const char c : text) Add(parser.Take({&c, 1}, false), &by_character);
  Add(parser.Take("", true), &by_character);
  EXPECT_EQ(by_character, whole) << text;
  return whole;
}

ParsedAnswer Tools(const char* family, std::string_view text) {
  return Parsed({.tool_parser = family, .salt = 7}, text);
}

// "NAME ARGUMENTS, ..." of the calls.
std::string Calls(const ParsedAnswer& answer) {
  std::string calls;
  for (const ParsedCall& call : answer.calls) {
    if (!calls.empty()) calls += ", ";
    calls += call.name + " " + json::parse(call.arguments).dump();
  }
  return calls;
}

void ExpectContentAlone(const char* family, std::string_view text) {
  const ParsedAnswer answer = Tools(family, text);
  EXPECT_EQ(answer.content, text);
  EXPECT_TRUE(answer.calls.empty()) << text;
}

const std::string kOneCall = R"(f {"a":1,"b":"}]</tool_call>\"\\"})";
constexpr char kObject[] = R"({"name": "f", "arguments": {"a": 1, "b": "}]</tool_call>\"\\"}})";

TEST(ToolParserTest, Hermes) {
  const std::string call = std::string("<tool_call>\n") + kObject + "\n</tool_call>";
  ParsedAnswer answer = Tools("hermes", "Let me see.\n" + call);
  EXPECT_EQ(answer.content, "Let me see.\n");
  EXPECT_EQ(Calls(answer), kOneCall);
  EXPECT_TRUE(answer.calls[0].id.starts_with("chatcmpl-tool-"));
  answer = Tools("hermes", call + "\n" + R"(<tool_call>{"arguments": {}, "name": "g\u00e9"})");
  EXPECT_EQ(Calls(answer), kOneCall + ", g\u00e9 {}");
  EXPECT_NE(answer.calls[0].id, answer.calls[1].id);
  // What follows calls is dropped, as by vLLM.
  EXPECT_EQ(Tools("hermes", call + "It is <b>fine</b>.").content, "");
  // Cut short, a call has what there was of it.
  answer = Tools("hermes", R"(<tool_call>{"name": "f", "arguments": {"a": [1, "x)");
  EXPECT_EQ(answer.calls.at(0).arguments, R"({"a": [1, "x)");
  answer = Tools("hermes", "<tool_call><tool_call>" + std::string(kObject));
  EXPECT_EQ(answer.content, "<tool_call>");
  EXPECT_EQ(Calls(answer), kOneCall);
}

TEST(ToolParserTest, HermesKeepsWhatIsNoCall) {
  for (const char* text :
       {"", "Hello", "a <tool_cal", "a <tool_call", "<tool_call>", "<tool_call>\n hm </tool_call>",
        R"(<tool_call>{"name": "f"}</tool_call>)", R"(<tool_call>{"name": 3, "arguments": {}})",
        R"(<tool_call>{"arguments": {}}</tool_call>)",
        R"(<tool_call>{"name": "", "arguments": {}})",
        R"(<tool_call>{"name": "f", "arguments": ?}</tool_call>)",
        R"(<tool_call>{"arguments": {"a": ]}, "name": "f"})", R"({"name": "f", "arguments": {}})",
        R"(<tool_call>{"arguments": {"a": 1}, "na)", "<tool_call>{\"name\" 3}"}) {
    ExpectContentAlone("hermes", text);
  }
  // What was kept of the first is not said again with the second.
  ExpectContentAlone("hermes", R"(<tool_call> {"a":x<tool_call> {"b":y)");
}

TEST(ToolParserTest, Llama3) {
  EXPECT_EQ(Calls(Tools("llama3_json", R"({"name": "f", "parameters": {"a": [1, {"b": null}]}})")),
            R"(f {"a":[1,{"b":null}]})");
  EXPECT_EQ(Calls(Tools("llama3_json", std::string("<|python_tag|> ") + kObject)), kOneCall);
  const ParsedAnswer two =
      Tools("llama3_json", std::string("\n") + kObject + R"(; {"type":)" +
                               R"( "function", "name": "g", "parameters": {}})");
  EXPECT_EQ(Calls(two), kOneCall + ", g {}");
  EXPECT_EQ(two.content, "");
  for (const char* text :
       {"", " ", "Hello {", "<|python_tag|>print(1)", "<|python", "<|pyt hon", " {",
        R"(<|python{"name": "f", "parameters": {}})", R"({"name": "Bob", "age": 3})",
        R"({"a": {"name": "f", "parameters": {}}})", R"([{"name":)", "{}", "{\"name\": \"Bob\"",
        R"({"name": "f", "parameters": })"}) {
    ExpectContentAlone("llama3_json", text);
  }
  // One that breaks off does not hide the next.
  EXPECT_EQ(Calls(Tools("llama3_json", std::string(kObject) + "; {x; " + kObject)),
            kOneCall + ", " + kOneCall);
}

TEST(ToolParserTest, Mistral) {
  const std::string array =
      std::string("[TOOL_CALLS] [") + kObject + ", " + R"({"name": "g", "arguments": {}}])";
  ParsedAnswer answer = Tools("mistral", "Well. " + array);
  EXPECT_EQ(answer.content, "Well. ");
  EXPECT_EQ(Calls(answer), kOneCall + ", g {}");
  EXPECT_EQ(answer.calls[0].id.size(), 9u);
  EXPECT_EQ(Calls(Tools("mistral", R"([TOOL_CALLS]f{"a": 1}[TOOL_CALLS]g-2[ARGS]{"b": {}})"
                                   R"([TOOL_CALLS]a.h[CALL_ID]abc123def[ARGS]{})")),
            R"(f {"a":1}, g-2 {"b":{}}, a.h {})");
  // Tools have the names that the client gives them.
  EXPECT_EQ(Calls(Tools("mistral", R"([TOOL_CALLS]files/read[ARGS]{}[TOOL_CALLS]köln:wetter{})")),
            "files/read {}, köln:wetter {}");
  answer = Tools("mistral", R"([TOOL_CALLS]f{"a": [1}, "b": 2} and more)");
  EXPECT_EQ(answer.calls.at(0).arguments, R"({"a": [1)");
  EXPECT_EQ(Calls(Tools("mistral", std::string("[TOOL_CALLS]") + kObject)), kOneCall);
  answer = Tools("mistral", "[TOOL_CALLS" + array);
  EXPECT_EQ(answer.content, "[TOOL_CALLS");
  EXPECT_EQ(Calls(answer), kOneCall + ", g {}");
  for (const char* text :
       {"", "Hello [TOOL", "[TOOL_CALLS]", "[TOOL_CALLS] ", "[TOOL_CALLS][", "[TOOL_CALLS][]",
        "[TOOL_CALLS][1]", "[TOOL_CALLS]I do not know.", "[TOOL_CALLS]f", "[TOOL_CALLS]{}",
        R"([TOOL_CALLS][{"name": "f"}])", "[TOOL_CALLS][TOOL_CALLS]", "[TOOL_CALLS][ARGS]{}"}) {
    ExpectContentAlone("mistral", text);
  }
  ExpectContentAlone("mistral", "[TOOL_CALLS]" + std::string(600, 'x') + "{}");
  for (const char* text :
       {"[TOOL_CALLS] I will use {braces}", "[TOOL_CALLS]foo[TOOL_CALLS]", "[TOOL_CALLS]f[x]{}",
        "[TOOL_CALLS]f[ARGS]x{}", R"([TOOL_CALLS]{"name":"x[TOOL_CALLS])"}) {
    ExpectContentAlone("mistral", text);
  }
  answer = Tools("mistral", R"([TOOL_CALLS]foo[TOOL_CALLS]bar{"a": 1})");
  EXPECT_EQ(answer.content, "[TOOL_CALLS]foo");
  EXPECT_EQ(Calls(answer), R"(bar {"a":1})");
  EXPECT_EQ(Calls(Tools("mistral", "[TOOL_CALLS] f [CALL_ID] abc123def [ARGS] {}")), "f {}");
  // An array that came before says nothing of a call that stands alone: what follows is dropped.
  EXPECT_EQ(Calls(Tools("mistral", array + "[TOOL_CALLS]" + kObject + kObject)),
            kOneCall + ", g {}, " + kOneCall);
}

// As models write them who are to give a text of several lines.
TEST(ToolParserTest, ControlCharactersInStringsAreEscaped) {
  const std::string arguments = "{\"a\":\n\"x\ny\tz\x01\\n\\\n\"}";
  const std::string object = "{\"name\": \"f\", \"arguments\": " + arguments + "}";
  for (const auto& [family, text] :
       {std::pair<const char*, std::string>{"hermes", "<tool_call>" + object + "</tool_call>"},
        {"llama3_json", object},
        {"mistral", "[TOOL_CALLS]f" + arguments}}) {
    const ParsedAnswer answer = Tools(family, text);
    ASSERT_EQ(answer.calls.size(), 1u) << family;
    EXPECT_EQ(answer.calls[0].arguments, "{\"a\":\n\"x\\ny\\tz\\u0001\\n\\\\\\n\"}") << family;
    EXPECT_EQ(json::parse(answer.calls[0].arguments)["a"], "x\ny\tz\x01\n\\\n");
  }
}

TEST(ToolParserTest, DeepOrBrokenValuesEndACall) {
  const std::string deep = R"(<tool_call>{"name": "f", "arguments": )" + std::string(1000, '[');
  const ParsedAnswer answer = Tools("hermes", deep);
  EXPECT_EQ(answer.calls.at(0).arguments, std::string(256, '['));
  // What comes behind a value, or closes another, is none of it; nor is a second one.
  for (const auto& [rest, arguments] : {std::pair(R"({"a": [1}})", R"({"a": [1)"),
                                        {R"(3"x"})", "3"},
                                        {R"(3{"a": 1}})", "3"},
                                        {R"(3[1]})", "3"},
                                        {"3 }", "3"},
                                        {R"({}, "parameters": {"b": 1}})", "{}"}}) {
    const std::string text = std::string(R"(<tool_call>{"name": "f", "arguments": )") + rest;
    const ParsedAnswer ended = Tools("hermes", text);
    ASSERT_EQ(ended.calls.size(), 1u) << text;
    EXPECT_EQ(ended.calls[0].arguments, arguments) << text;
  }
  EXPECT_FALSE(IsToolParser("pythonic"));
  EXPECT_TRUE(IsToolParser("mistral"));
  EXPECT_TRUE(ReadsSpecialTokens("mistral"));
  EXPECT_FALSE(ReadsSpecialTokens("llama3_json"));
}

ParsedAnswer Thoughts(const char* name, std::string_view text, std::string_view prompt = "") {
  return Parsed({.reasoning_parser = name, .prompt = prompt}, text);
}

TEST(ReasoningParserTest, ThoughtsAreApart) {
  const auto is = [](const char* reasoning, const char* content) {
    return ParsedAnswer{.content = content, .reasoning = reasoning};
  };
  for (const char* name : {"deepseek_r1", "qwen3"}) {
    EXPECT_EQ(Thoughts(name, "<think>a\n</think>b </think>"), is("a\n", "b </think>"));
    EXPECT_EQ(Thoughts(name, "\n<think>a</thin</think>b"), is("a</thin", "b"));
    EXPECT_EQ(Thoughts(name, "<think>a</thin"), is("a</thin", ""));
    EXPECT_EQ(Thoughts(name, "a</think>b", "<|assistant|><think>\n"), is("a", "b"));
    EXPECT_EQ(Thoughts(name, "<think>a</think>b", "<think>\n"), is("a", "b"));
    EXPECT_EQ(Thoughts(name, "a<think>b", "<think>\n\n</think>\n\n"), is("", "a<think>b"));
  }
  EXPECT_EQ(Thoughts("deepseek_r1", "a</think>b"), is("a", "b"));
  EXPECT_EQ(Thoughts("deepseek_r1", " <thin"), is(" <thin", ""));
  EXPECT_EQ(Thoughts("qwen3", "a</think>b"), is("", "a</think>b"));
  EXPECT_EQ(Thoughts("qwen3", " <thin"), is("", " <thin"));
  EXPECT_FALSE(ReasoningParser::IsName("granite"));
}

// By that message, not by how the prompt ends.
TEST(ReasoningParserTest, AMessageThatGoesOnIsWhereItWas) {
  const auto after = [](const char* name, const char* continued, const char* prompt = "") {
    return Parsed({.reasoning_parser = name, .prompt = prompt, .continued = continued},
                  "more</think>x");
  };
  const ParsedAnswer thinks{.content = "x", .reasoning = "more"};
  const ParsedAnswer answers{.content = "more</think>x", .reasoning = ""};
  for (const char* const name : {"deepseek_r1", "qwen3"}) {
    EXPECT_EQ(after(name, "<think>I was"), thinks);
    EXPECT_EQ(after(name, "<think>"), thinks);
    EXPECT_EQ(after(name, "<think>I was</think>There"), answers);
    EXPECT_EQ(after(name, "There was"), answers);
    EXPECT_EQ(after(name, " ", "<think>\n"), thinks) << "nothing has been said";
  }
}

// The connections' thread reads an answer's spaces, and a bias may have a model write only these.
TEST(ReasoningParserTest, SpacesBeforeThoughtsAreReadOnce) {
  const std::string spaces(1 << 20, ' ');
  EXPECT_EQ(Whole({.reasoning_parser = "qwen3"}, spaces + "<think>hm</think>Yes"),
            (ParsedAnswer{.content = "Yes", .reasoning = "hm"}));
  EXPECT_EQ(Whole({.reasoning_parser = "qwen3"}, spaces).content, spaces);
}

TEST(AnswerParserTest, CallsComeAfterThoughts) {
  AnswerParser::Options options{.tool_parser = "hermes", .reasoning_parser = "qwen3"};
  const std::string text =
      std::string(R"(<think><tool_call>{"name": "no", "arguments": {}}</think>Now: )") +
      "<tool_call>" + kObject +
      R"(</tool_call><tool_call>{"name": "g", "arguments": 3}</tool_call>)";
  ParsedAnswer answer = Parsed(options, text);
  EXPECT_EQ(answer.reasoning, R"(<tool_call>{"name": "no", "arguments": {}})");
  EXPECT_EQ(answer.content, "Now: ");
  EXPECT_EQ(Calls(answer), kOneCall + ", g 3");
  options.parallel_tool_calls = options.include_reasoning = false;
  answer = Parsed(options, text);
  EXPECT_EQ(answer.reasoning, "");
  EXPECT_EQ(Calls(answer), kOneCall);
}

}  // namespace
}  // namespace kvcake
