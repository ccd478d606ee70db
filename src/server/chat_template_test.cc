#include "server/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/source_dir_testing.h"
#include "base/temp_dir_testing.h"

namespace kvcake {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;
using testing::HasSubstr;

constexpr char kChatMl[] =
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + "
    "message['content'] + '<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|im_start|>assistant\\n' }}{% endif %}";

// With what else apply_chat_template is given.
ChatPrompt Asking(const ordered_json& messages,
                  const ordered_json& fields = ordered_json::object()) {
  ChatPrompt prompt;
  prompt.messages = messages;
  for (const auto& [name, value] : fields.items()) {
    if (name == "tools") {
      prompt.tools = value;
    } else if (name == "documents") {
      prompt.documents = value;
    } else if (name == "add_generation_prompt") {
      prompt.add_generation_prompt = value;
    } else if (name == "continue_final_message") {
      prompt.continue_final_message = value;
    } else {
      prompt.kwargs[name] = value;
    }
  }
  return prompt;
}

ChatPrompt AskingHi() { return Asking({{{"role", "user"}, {"content", "Hi"}}}); }

ChatTemplate Of(std::string_view jinja, const ordered_json& tokens = ordered_json::object(),
                const ChatTemplateOptions& options = {}) {
  return ChatTemplate::FromText(jinja, tokens, options).value();
}

TEST(ChatTemplateTest, WritesWhatTransformersWrites) {
  std::ifstream file(SourceDir() + "/tests/golden/chat_templates/golden.json");
  const ordered_json golden = ordered_json::parse(file);
  int refused = 0, rendered = 0;
  for (const ordered_json& model : golden) {
    SCOPED_TRACE(model["name"].get<std::string>());
    const auto made =
        ChatTemplate::FromText(model["template"].get<std::string>(),
                               {{"bos_token", model["bos"]}, {"eos_token", model["eos"]}});
    ASSERT_TRUE(made) << made.error().message;
    for (const ordered_json& test : model["cases"]) {
      SCOPED_TRACE(test["messages"].dump() + test["fields"].dump());
      const auto text = made->Render(Asking(test["messages"], test["fields"]));
      if (test["text"].is_null()) {
        EXPECT_FALSE(text);
        ++refused;
      } else {
        ASSERT_TRUE(text) << text.error().message;
        EXPECT_EQ(*text, test["text"].get<std::string>());
        ++rendered;
      }
    }
  }
  EXPECT_GT(refused, 5);
  EXPECT_GT(rendered, 50);
}

TEST(ChatTemplateTest, TellsTheTemplateAllThatTransformersDoes) {
  const ChatTemplate chat =
      Of("{{ bos_token }}|{{ pad_token }}|{{ sep_token is defined }}|{{ tools }}|{{ documents }}|"
         "{{ add_generation_prompt }}|{{ enable_thinking }}|{{ messages[0].content }}",
         {{"bos_token", "<s>"}, {"pad_token", "<pad>"}});
  ChatPrompt prompt = AskingHi();
  EXPECT_EQ(chat.Render(prompt).value(), "<s>|<pad>|False|None|None|True||Hi");
  prompt.tools = {{{"type", "function"}, {"function", {{"name", "f"}}}}};
  prompt.documents = {{{"title", "t"}}};
  prompt.kwargs = {{"enable_thinking", false}, {"bos_token", "<b>"}};
  prompt.add_generation_prompt = false;
  EXPECT_EQ(chat.Render(prompt).value(),
            "<b>|<pad>|False|[{'type': 'function', 'function': {'name': 'f'}}]|[{'title': 't'}]|"
            "False|False|Hi");
}

TEST(ChatTemplateTest, MembersThatAreNullAreNone) {
  const ChatTemplate chat = Of("{{ messages[0].x is defined }} {{ messages[0].role }}");
  EXPECT_EQ(
      chat.Render(Asking({{{"content", "c"}, {"role", "assistant"}, {"x", nullptr}}})).value(),
      "False assistant");
}

// As a client says again what it was answered: Qwen3's template looks for a word in the content.
TEST(ChatTemplateTest, WhoCallsToolsNeedsNoContent) {
  const ChatTemplate looks =
      Of("{% for m in messages %}{% if '</think>' in m.content %}!{% endif %}<{{ m.content }}>"
         "{% endfor %}");
  const ChatTemplate takes_parts =
      Of("{% for m in messages %}{% for c in m.content | selectattr('type', 'equalto', 'text') %}"
         "[{{ c.text }}]{% endfor %};{% endfor %}");
  const ordered_json calls = {
      {{"function", {{"name", "f"}, {"arguments", ordered_json::object()}}}}};
  for (const bool is_null : {false, true}) {
    ordered_json asks = {{"role", "assistant"}, {"tool_calls", calls}};
    if (is_null) asks["content"] = nullptr;
    const ordered_json messages = {
        {{"role", "user"}, {"content", "Hi"}}, asks, {{"role", "tool"}, {"content", "22"}}};
    EXPECT_EQ(looks.Render(Asking(messages)).value(), "<Hi><><22>");
    EXPECT_EQ(takes_parts.Render(Asking(messages)).value(), "[Hi];;[22];");
  }
}

TEST(ChatTemplateTest, AToolsPartsAreJoinedWhateverTheTemplateTakesFromUsers) {
  const ordered_json parts = {{{"type", "text"}, {"text", "A"}}, {{"type", "text"}, {"text", "B"}}};
  const ordered_json messages = {{{"role", "user"}, {"content", parts}},
                                 {{"role", "tool"}, {"content", parts}}};
  const ChatTemplate chat =
      Of("{% for m in messages %}{% if m.role == 'tool' or m.content is string %}<{{ m.content }}>"
         "{% else %}{% for c in m.content %}[{{ c.text }}]{% endfor %}{% endif %}{% endfor %}");
  EXPECT_EQ(chat.Render(Asking(messages)).value(), "[A][B]<A\nB>");
}

TEST(ChatTemplateTest, ErrorsNameLineAndConstruct) {
  const auto refusal = [](const char* jinja) {
    return ChatTemplate::FromText(jinja, ordered_json::object()).error();
  };
  EXPECT_THAT(refusal("a\n{% frobnicate %}").message,
              testing::AllOf(HasSubstr("line 2"), HasSubstr("frobnicate")));
  EXPECT_THAT(refusal("a\n\n{{ x | no_such_filter }}").message,
              testing::AllOf(HasSubstr("line 3"), HasSubstr("no_such_filter")));
  EXPECT_EQ(refusal("{% include 'x' %}").code, ErrorCode::kUnsupported);
  const auto raised = Of("{{ raise_exception('Roles must alternate') }}").Render(AskingHi());
  EXPECT_EQ(raised.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(raised.error().message, HasSubstr("Roles must alternate"));
}

TEST(ChatTemplateTest, AHostileTemplateMeetsItsLimits) {
  ChatTemplateOptions options;
  options.limits.steps = 1000;
  const auto many = Of("{% for i in range(100000) %}{% endfor %}", {}, options).Render(AskingHi());
  EXPECT_EQ(many.error().code, ErrorCode::kResourceExhausted);
  options.limits = {.output_bytes = 100};
  const auto much = Of("{{ 'x' * 101 }}", {}, options).Render(AskingHi());
  EXPECT_EQ(much.error().code, ErrorCode::kResourceExhausted);
}

TEST(ChatTemplateTest, PartsAreJoinedWhereTheTemplateTakesNone) {
  const ordered_json parts = {
      {{"role", "user"},
       {"content", {{{"type", "text"}, {"text", "A"}}, {{"type", "text"}, {"text", "B"}}}}}};
  const char* const loops =
      "{% for m in messages %}{% for part in m.content %}[{{ part.text }}]{% endfor %}"
      "{% endfor %}";
  const char* const prints = "{% for m in messages %}{{ m.content }}{% endfor %}";
  EXPECT_EQ(Of(loops).Render(Asking(parts)).value(), "[A][B]");
  EXPECT_EQ(Of(prints).Render(Asking(parts)).value(), "A\nB");
  const ordered_json begins_empty = {
      {{"role", "user"},
       {"content", {{{"type", "text"}, {"text", ""}}, {{"type", "text"}, {"text", "B"}}}}}};
  EXPECT_EQ(Of(prints).Render(Asking(begins_empty)).value(), "\nB");
  EXPECT_EQ(Of(kChatMl).Render(Asking(parts)).value(),
            "<|im_start|>user\nA\nB<|im_end|>\n<|im_start|>assistant\n");
  ChatTemplateOptions options;
  options.content_format = "openai";
  EXPECT_THAT(Of(prints, {}, options).Render(Asking(parts)).value(), HasSubstr("'type': 'text'"));
  options.content_format = "string";
  EXPECT_EQ(Of(loops, {}, options).Render(Asking(parts)).value(), "[][][]");
}

// Templates like those of Llama Guard 3 and LLaVA are silent about a text.
TEST(ChatTemplateTest, TextsArePartsWhereTheTemplateTakesNothingElse) {
  const ordered_json text = {{{"role", "user"}, {"content", "Hi"}}};
  const char* const selects =
      "{% for m in messages %}{% for c in m.content | selectattr('type', 'equalto', 'text') %}"
      "[{{ c.text }}]{% endfor %}{% endfor %}";
  const char* const takes_both =
      "{% for m in messages %}{% if m.content is string %}<{{ m.content }}>{% else %}"
      "{% for c in m.content %}[{{ c.text }}]{% endfor %}{% endif %}{% endfor %}";
  EXPECT_EQ(Of(selects).Render(Asking(text)).value(), "[Hi]");
  EXPECT_EQ(Of(takes_both).Render(Asking(text)).value(), "<Hi>");
  EXPECT_EQ(Of(kChatMl).Render(Asking(text)).value(),
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
  ChatPrompt prompt = Asking({{{"role", "assistant"}, {"content", "Well"}}});
  prompt.continue_final_message = true;
  prompt.add_generation_prompt = false;
  EXPECT_EQ(Of(selects).Render(prompt).value(), "[Well");
  for (const char* const format : {"openai", "string"}) {
    ChatTemplateOptions options;
    options.content_format = format;
    EXPECT_EQ(Of(selects, {}, options).Render(Asking(text)).value(),
              format == std::string("openai") ? "[Hi]" : "");
  }
}

TEST(ChatTemplateTest, GoesOnWithTheLastMessage) {
  const auto go_on = [](const char* jinja, const ordered_json& content) {
    ChatPrompt prompt = Asking(
        {{{"role", "user"}, {"content", "Hi"}}, {{"role", "assistant"}, {"content", content}}});
    prompt.continue_final_message = true;
    prompt.add_generation_prompt = false;
    return Of(jinja).Render(prompt);
  };
  const std::string before = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n";
  EXPECT_EQ(go_on(kChatMl, "It is ").value(), before + "It is ");
  const char* const trims =
      "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}</>{% endfor %}";
  EXPECT_EQ(go_on(trims, "It is ").value(), "<user>Hi</><assistant>It is");
  const char* const loops =
      "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}"
      "{% for part in m.content %}[{{ part.text }}]{% endfor %}{% endif %}{% endfor %}";
  EXPECT_EQ(
      go_on(loops, {{{"type", "text"}, {"text", "A"}}, {{"type", "text"}, {"text", "B"}}}).value(),
      "Hi[A][B");
  EXPECT_EQ(go_on("{{ messages[0].content }}", "It is").error().code, ErrorCode::kInvalidArgument);
  // Its end can be found, but what is before it is not what was said.
  const char* const shouts = "{% for m in messages %}{{ m.content | upper }}{% endfor %}";
  EXPECT_EQ(go_on(shouts, "It is").error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(go_on(shouts, "IT IS").value(), "HIIT IS");
  EXPECT_EQ(go_on(kChatMl, nullptr).error().code, ErrorCode::kInvalidArgument);
}

class ChatTemplateFilesTest : public testing::Test {
 protected:
  const std::string& dir() const { return temp_.path(); }
  void Write(const std::string& name, const std::string& text) {
    std::ofstream(dir() + "/" + name) << text;
  }
  void WriteConfig(const json& chat_template) {
    Write("tokenizer_config.json", json({{"bos_token", {{"content", "<B>"}}},
                                         {"eos_token", "<E>"},
                                         {"chat_template", chat_template}})
                                       .dump());
  }
  Result<ChatTemplate> Load(const std::string& file = "") {
    return ChatTemplate::Load(dir(), {.file = file});
  }
  std::string Render(const ChatPrompt& prompt) { return Load().value().Render(prompt).value(); }

 private:
  const TempDir temp_;
};

TEST_F(ChatTemplateFilesTest, ADirectoryWithoutOneSaysWhatToGive) {
  EXPECT_EQ(Load().error().code, ErrorCode::kNotFound);
  EXPECT_THAT(Load().error().message, HasSubstr("--chat-template"));
}

TEST_F(ChatTemplateFilesTest, FilesComeBeforeTheConfiguration) {
  WriteConfig("{{ bos_token }}config{{ eos_token }}{{ unk_token }}");
  EXPECT_EQ(Render(AskingHi()), "<B>config<E>");
  Write("special_tokens_map.json", R"({"unk_token": {"content": "<U>"}, "bos_token": "<M>"})");
  EXPECT_EQ(Render(AskingHi()), "<M>config<E><U>") << "as transformers has it";
  Write("chat_template.jinja", "file{{ bos_token }}");
  EXPECT_EQ(Render(AskingHi()), "file<M>");
  Write("given", "given{{ eos_token }}");
  EXPECT_EQ(Load(dir() + "/given").value().Render(AskingHi()).value(), "given<E>");
}

TEST_F(ChatTemplateFilesTest, TokensAreCalledByTheirRoles) {
  const std::string text = "{{ bos_token }}{{ image_token }}{{ additional_special_tokens }}";
  const auto write = [&](json config) {
    config["chat_template"] = text;
    Write("tokenizer_config.json", config.dump());
  };
  write({{"tokenizer_class", "LlamaTokenizer"},
         {"extra_special_tokens", {{"image_token", "<I>"}}},
         {"additional_special_tokens", {"<A>"}}});
  EXPECT_EQ(Render(AskingHi()), "<s><I>['<A>']");
  write({{"bos_token", "<B>"}, {"image_token", {{"content", "<J>"}}}});
  EXPECT_EQ(Render(AskingHi()), "<B><J>");
}

TEST_F(ChatTemplateFilesTest, NamedOnesAreForTools) {
  ChatPrompt with_tools = AskingHi();
  with_tools.tools = {{{"type", "function"}, {"function", {{"name", "f"}}}}};
  WriteConfig({{{"name", "tool_use"}, {"template", "tools {{ tools[0].function.name }}"}},
               {{"name", "default"}, {"template", "plain"}}});
  EXPECT_EQ(Render(AskingHi()), "plain");
  EXPECT_EQ(Render(with_tools), "tools f");
  EXPECT_THAT(Load().value().Describe(), HasSubstr("default, tool_use"));
  WriteConfig({{"default", "plain by name"}, {"tool_use", "tools by name"}});
  EXPECT_EQ(Render(AskingHi()), "plain by name");
  EXPECT_EQ(Render(with_tools), "tools by name");
  WriteConfig({{{"name", "rag"}, {"template", "r"}}});
  EXPECT_THAT(Load().value().Render(AskingHi()).error().message, HasSubstr("rag"));
  std::filesystem::create_directory(dir() + "/additional_chat_templates");
  Write("additional_chat_templates/tool_use.jinja", "tools of a file");
  Write("additional_chat_templates/README", "{% none");
  Write("chat_template.jinja", "plain of a file");
  EXPECT_EQ(Render(AskingHi()), "plain of a file");
  EXPECT_EQ(Render(with_tools), "tools of a file");
}

TEST_F(ChatTemplateFilesTest, ErrorsNameTheFile) {
  WriteConfig({{{"name", "tool_use"}, {"template", "{% for %}"}},
               {{"name", "default"}, {"template", "plain"}}});
  EXPECT_THAT(Load().error().message, testing::AllOf(HasSubstr("tool_use"), HasSubstr("line 1")));
  WriteConfig(7);
  EXPECT_THAT(Load().error().message, HasSubstr("chat_template"));
  Write("chat_template.jinja", "{{ x");
  EXPECT_THAT(Load().error().message, HasSubstr("chat_template.jinja"));
  Write("chat_template.jinja", std::string((1 << 20) + 1, 'x'));
  EXPECT_EQ(Load().error().code, ErrorCode::kResourceExhausted);
  EXPECT_EQ(Load(dir() + "/chat_template.jinja").error().code, ErrorCode::kResourceExhausted);
  EXPECT_EQ(Load(dir() + "/none").error().code, ErrorCode::kNotFound);
  ASSERT_EQ(unlink((dir() + "/chat_template.jinja").c_str()), 0);
  ASSERT_EQ(mkfifo((dir() + "/chat_template.jinja").c_str(), 0600), 0);
  EXPECT_THAT(Load().error().message, HasSubstr("chat_template.jinja is not a regular file"));
}

}  // namespace
}  // namespace kvcake
