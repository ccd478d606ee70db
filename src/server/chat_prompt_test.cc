#include "server/chat_prompt.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include "server/openai_request_testing.h"

namespace kvcake {
namespace {

TEST(ChatPromptTest, MessagesToolsAndCallsAreBounded) {
  const RequestRules rules{
      .limits = {.chat = {.messages_max = 2, .tools_max = 2, .tool_calls_max = 2}}};
  // So many of each, two by default.
  const auto param = [&](int messages, int tools, int calls) -> std::string {
    using nlohmann::json;
    const json call = {{"function", {{"name", "f"}}}};
    const json message = {{"role", "assistant"}, {"tool_calls", std::vector(calls, call)}};
    const std::string body =
        json{{"messages", std::vector(messages, message)}, {"tools", std::vector(tools, call)}}
            .dump();
    const auto request = ParseChat(ParseBody(body).value(), rules);
    return request ? "" : request.error().param;
  };
  EXPECT_EQ(param(2, 2, 2), "");
  EXPECT_EQ(param(3, 2, 2), "messages");
  EXPECT_EQ(param(2, 3, 2), "tools");
  EXPECT_EQ(param(2, 2, 3), "messages[0].tool_calls");
}

// As vLLM has it: what a client says of the template itself goes before.
TEST(ChatPromptTest, AnEffortThatTheTemplateIsToldIsNotChanged) {
  const auto kwargs = [](const std::string& fields) {
    return std::get<ChatPrompt>(ChatWith(fields).value().prompts[0]).kwargs.dump();
  };
  EXPECT_EQ(kwargs(R"("reasoning_effort": "low")"), R"({"reasoning_effort":"low"})");
  EXPECT_EQ(kwargs(R"("reasoning_effort": "low", "chat_template_kwargs": {"reasoning_effort":
      "high"})"),
            R"({"reasoning_effort":"high"})");
}

TEST(ChatPromptTest, FieldsOfTheRequestAreNoVariablesOfTheTemplate) {
  for (const char* const field : {"messages", "tools", "documents", "add_generation_prompt"}) {
    const auto request = ChatWith(fmt::format(R"("chat_template_kwargs": {{"{}": []}})", field));
    ASSERT_FALSE(request) << field;
    EXPECT_EQ(request.error().param, "chat_template_kwargs");
    EXPECT_NE(request.error().message.find(field), std::string::npos) << request.error().message;
  }
}

// What this server has answered comes back with the next turn, however a model wrote it.
TEST(ChatPromptTest, ArgumentsThatAreNoObjectAreEmptyToTemplates) {
  for (const std::string& arguments :
       {std::string("\\\"a\\\""), std::string("{\\\"of\\\": \\\"a"), std::string("null"),
        std::string("[1]"), std::string("{\\\"a\\\": \\\"x\\ny\\\"}"), std::string(" ")}) {
    const auto request = ChatWith(R"("messages": [{"role": "assistant", "tool_calls": [{"function":
        {"name": "f", "arguments": ")" +
                                  arguments + R"("}}]}])");
    ASSERT_TRUE(request) << arguments << ": " << request.error().message;
    const auto& prompt = std::get<ChatPrompt>(request->prompts[0]);
    EXPECT_EQ(prompt.messages[0]["tool_calls"][0]["function"]["arguments"].dump(), "{}")
        << arguments;
  }
}

TEST(ChatPromptTest, ArgumentsThatAreTooDeepAreRefused) {
  const auto nested = [](int depth) {
    return ChatWith(R"("messages": [{"role": "assistant", "tool_calls": [{"function":
        {"name": "f", "arguments": "{\"a\": )" +
                    std::string(depth - 1, '[') + std::string(depth - 1, ']') + R"(}"}}]}])");
  };
  EXPECT_TRUE(nested(32));
  const auto deep = nested(33);
  ASSERT_FALSE(deep);
  EXPECT_EQ(deep.error().param, "messages[0].tool_calls[0].function.arguments");
  EXPECT_NE(deep.error().message.find("more than 32 deep"), std::string::npos);
}

// What stands behind an inner object belongs to the outer one again.
TEST(ChatPromptTest, MembersAreCountedOfTheirOwnObject) {
  const RequestRules rules{.limits = {.chat = {.object_members_max = 3}}};
  const auto read = [&](const std::string& kwargs) {
    const std::string body =
        R"({"messages": [{"role": "user", "content": "x"}], "chat_template_kwargs": )" + kwargs +
        "}";
    return ParseChat(ParseBody(body).value(), rules).has_value();
  };
  EXPECT_TRUE(read(R"({"a": {"x": 0, "y": 0, "z": 0}, "b": 0, "c": 0})"));
  EXPECT_FALSE(read(R"({"a": {"x": 0}, "b": 0, "c": 0, "d": 0})"));
}

// The parser that keeps the order of members looks each up among all before it.
TEST(ChatPromptTest, ManyLargeObjectsAreRefused) {
  const auto object = [](const std::string& quote) {
    std::string text = "{";
    for (int i = 0; i < 1024; ++i) text += fmt::format("{0}{1}{0}:0,", quote, i);
    text.back() = '}';
    return text;
  };
  const auto unused = [&](int count) {
    std::string list;
    for (int i = 0; i < count; ++i) list += "," + object("\"");
    return ChatWith("\"metadata\": [" + list.substr(1) + "]");
  };
  const auto called = [&](int count) {
    std::string list;
    for (int i = 0; i < count; ++i) {
      list += R"(,{"function": {"name": "f", "arguments": ")" + object("\\\"") + "\"}}";
    }
    return ChatWith(R"("messages": [{"role": "assistant", "tool_calls": [)" + list.substr(1) +
                    "]}]");
  };
  EXPECT_TRUE(unused(60));
  EXPECT_TRUE(called(60));
  for (const auto& refused : {unused(64), called(64)}) {
    ASSERT_FALSE(refused);
    EXPECT_NE(refused.error().message.find("too many objects with many members"),
              std::string::npos);
  }
}

TEST(ChatPromptTest, AnAssistantsRefusalIsItsText) {
  const auto request = ChatWith(R"("messages": [{"role": "assistant", "content":
      [{"type": "refusal", "refusal": "I will not."}]}])");
  ASSERT_TRUE(request) << request.error().message;
  const auto& prompt = std::get<ChatPrompt>(request->prompts[0]);
  EXPECT_EQ(prompt.messages[0]["content"].dump(), R"([{"type":"text","text":"I will not."}])");
}

TEST(ChatPromptTest, NoToolsAreNothingToChooseFrom) {
  const auto request = ChatWith(R"("tools": [], "tool_choice": "auto")");
  ASSERT_TRUE(request) << request.error().message;
  EXPECT_EQ(request->tool_choice, ToolChoice::kNone);
  EXPECT_FALSE(ChatWith(R"("tool_choice": "auto")"));
}

TEST(ChatPromptTest, WhatIsContinuedIsTheLastMessage) {
  const auto continued = [](const std::string& content, const char* flag = "true") {
    const auto request = ChatWith(R"("messages": [{"role": "user", "content": "hi"}, {"role":
        "assistant", "content": )" +
                                  content + R"(}], "continue_final_message": )" + flag);
    return ContinuedText(std::get<ChatPrompt>(request->prompts[0]));
  };
  EXPECT_EQ(continued(R"("There was")"), "There was");
  EXPECT_EQ(continued(R"([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}])"), "ab");
  EXPECT_EQ(continued("null"), "");
  EXPECT_EQ(continued(R"("There was")", "false"), "");
}

TEST(ChatPromptTest, ErrorsNameTheMessage) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({})", "messages"},
      {R"({"messages": []})", "messages"},
      {R"({"messages": "hi"})", "messages"},
      {R"({"messages": ["hi"]})", "messages[0]"},
      {R"({"messages": [{"role": "user", "content": "x"}, {"role": "pope", "content": "x"}]})",
       "messages[1].role"},
      {R"({"messages": [{"content": "x"}]})", "messages[0].role"},
      {R"({"messages": [{"role": "user"}]})", "messages[0].content"},
      {R"({"messages": [{"role": "user", "content": 3}]})", "messages[0].content"},
      {R"({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]})",
       "messages[0].content[0].type"},
      {R"({"messages": [{"role": "user", "content": [{"type": "text"}]}]})",
       "messages[0].content[0].text"},
      {R"({"messages": [{"role": "assistant", "content": "", "tool_calls": [{}]}]})",
       "messages[0].tool_calls[0].function"},
      {R"({"messages": [{"role": "user", "content": "", "tool_calls": [{}]}]})",
       "messages[0].tool_calls"},
      {R"({"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f",
          "arguments": [1]}}]}]})",
       "messages[0].tool_calls[0].function.arguments"},
      {R"({"messages": [{"role": "user", "content": [{"type": "refusal", "refusal": "no"}]}]})",
       "messages[0].content[0].type"},
      {R"({"messages": [{"role": "assistant", "content": [{"type": "refusal"}]}]})",
       "messages[0].content[0].refusal"},
      {R"({"messages": [{"role": "assistant", "tool_calls": [{"type": "custom"}]}]})",
       "messages[0].tool_calls[0].type"},
      {R"({"messages": [{"role": "user", "content": "x", "name": 3}]})", "messages[0].name"},
      {R"({"messages": [{"role": "tool", "tool_call_id": {}}]})", "messages[0].tool_call_id"},
      {R"({"messages": [{"role": "assistant", "reasoning": ["x"]}]})", "messages[0].reasoning"},
      {R"({"messages": [{"role": "assistant", "function_call": {"name": "f"}}]})",
       "messages[0].function_call"},
      {R"({"messages": [{"role": "assistant", "audio": {"id": "a"}}]})", "messages[0].audio"},
  };
  for (const auto& [body, param] : cases) {
    const auto request = ParsedChat(body);
    ASSERT_FALSE(request) << body;
    EXPECT_EQ(request.error().param, param) << body;
  }
  EXPECT_EQ(ChatWith(R"("top_logprobs": 2)").error().param, "top_logprobs");
  EXPECT_EQ(ChatWith(R"("logprobs": 2)").error().param, "logprobs");
}

TEST(ChatPromptTest, NumbersOfAChatAreBounded) {
  const auto param = [](const char* fields) {
    const auto request = ChatWith(fields);
    return request ? "" : request.error().param;
  };
  EXPECT_EQ(param(R"("logprobs": true, "top_logprobs": 20)"), "");
  EXPECT_EQ(param(R"("logprobs": true, "top_logprobs": 21)"), "top_logprobs");
  EXPECT_EQ(param(R"("presence_penalty": -2, "frequency_penalty": 2)"), "");
  EXPECT_EQ(param(R"("presence_penalty": -2.1)"), "presence_penalty");
  EXPECT_EQ(param(R"("frequency_penalty": 2.1)"), "frequency_penalty");
  EXPECT_EQ(param(R"("max_tokens": 4, "min_tokens": 4)"), "");
  EXPECT_EQ(param(R"("max_tokens": 4, "min_tokens": 5)"), "min_tokens");
}

}  // namespace
}  // namespace kvcake
