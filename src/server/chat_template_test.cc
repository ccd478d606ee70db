#include "server/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "base/source_dir_testing.h"
#include "base/temp_dir_testing.h"

namespace kvcake {
namespace {

using nlohmann::json;
using testing::HasSubstr;

TEST(ChatTemplateTest, WritesWhatTransformersWrites) {
  std::ifstream file(SourceDir() + "/tests/golden/chat_templates/golden.json");
  const json golden = json::parse(file);
  int refused = 0, rendered = 0;
  for (const json& model : golden) {
    SCOPED_TRACE(model["name"].get<std::string>());
    const auto made =
        ChatTemplate::FromText(model["template"].get<std::string>(), model["bos"], model["eos"]);
    ASSERT_TRUE(made) << made.error().message;
    EXPECT_EQ(made->family(), model["family"].get<std::string>());
    for (const json& test : model["cases"]) {
      SCOPED_TRACE(test["messages"].dump());
      std::vector<ChatMessage> messages;
      for (const json& message : test["messages"]) {
        messages.push_back({message["role"], message["content"]});
      }
      const auto text = made->Render(messages);
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

Error Refusal(const std::string& jinja) {
  const auto made = ChatTemplate::FromText(jinja, "<s>", "</s>");
  EXPECT_FALSE(made) << jinja;
  return made ? Error{} : made.error();
}

TEST(ChatTemplateTest, RefusesWhatItDoesNotKnow) {
  EXPECT_THAT(Refusal("{{ messages[0]['content'] }}").message, HasSubstr("none of the families"));
  EXPECT_EQ(Refusal("<start_of_turn>").code, ErrorCode::kUnsupported);
  // Near misses: the markers of a family, used in another way.
  EXPECT_THAT(Refusal("'<|im_start|>assistant<|im_sep|>' '<|im_end|>'").message,
              HasSubstr("looks like ChatML"));
  EXPECT_THAT(
      Refusal("'<|im_start|>assistant\\n<think>\\n' '<|im_end|>\\n' <|im_start|>assistant\\n'")
          .message,
      HasSubstr("thinks"));
  EXPECT_THAT(Refusal("<|im_start|>system\nBe good.<|im_end|>\n '<|im_start|>assistant\\n'"
                      "'<|im_end|>\\n'")
                  .message,
              HasSubstr("system"));
  EXPECT_THAT(Refusal("'[SYSTEM_PROMPT]' '[INST] '").message, HasSubstr("Mistral"));
  EXPECT_THAT(Refusal("'[INST] <' + message['content']").message, HasSubstr("user's messages"));
  EXPECT_THAT(Refusal("'<|start_header_id|>' '<|eot_id|>'").message, HasSubstr("Llama 3"));
}

// Each is like a published one that has a family's markers and writes something else.
TEST(ChatTemplateTest, RefusesATemplateThatWritesWhatItsFamilyDoesNot) {
  const std::string chatml =
      "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + "
      "message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}{% if add_generation_prompt %}"
      "{{ '<|im_start|>assistant\\n' }}{% endif %}";
  ASSERT_TRUE(ChatTemplate::FromText(chatml, "<s>", "</s>"));
  // Qwen2.5-Math: a backslash in the default system message.
  EXPECT_THAT(Refusal("{% if messages[0]['role'] != 'system' %}{{ '<|im_start|>system\\nPut it in "
                      "\\\\boxed{}.<|im_end|>\\n' }}{% endif %}" +
                      chatml)
                  .message,
              HasSubstr("\\boxed{}"));
  // Yi-1.5: the system message stands alone, and every question opens its answer.
  EXPECT_THAT(
      Refusal("{% if messages[0]['role'] == 'system' %}{% set system_message = "
              "messages[0]['content'] %}{% endif %}{% if system_message is defined %}{{ "
              "system_message }}{% endif %}{% for message in messages %}{% set content = "
              "message['content'] %}{% if message['role'] == 'user' %}{{ '<|im_start|>user\\n' + "
              "content + '<|im_end|>\\n<|im_start|>assistant\\n' }}{% elif message['role'] == "
              "'assistant' %}{{ content + '<|im_end|>' + '\\n' }}{% endif %}{% endfor %}"
              "{{ '<|im_start|>assistant\\n' }}")
          .message,
      HasSubstr("system messages"));
  const std::string llama3 =
      "{% for message in messages %}{{ '<|start_header_id|>' + message['role'] + "
      "'<|end_header_id|>\\n\\n' + message['content'] | trim + '<|eot_id|>' }}{% endfor %}"
      "{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}";
  ASSERT_TRUE(ChatTemplate::FromText(llama3, "<s>", "</s>"));
  // Functionary v3.2: answers are addressed.
  EXPECT_THAT(
      Refusal(llama3 + "{% if message['content'] is not none %}{{ '>>>all\\n' }}{% endif %}")
          .message,
      HasSubstr(">>>all"));
  // Firefunction v2: a system message that is always there.
  EXPECT_THAT(
      Refusal("{{ '<|start_header_id|>system<|end_header_id|>\\n\\nIn addition to plain text "
              "responses, you can chose to call' }}" +
              llama3)
          .message,
      HasSubstr("In addition to plain text"));
  // Vigogne 2: a default system message.
  const std::string llama2 =
      "{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}{{ '<<SYS>>\\n' + content.strip() "
      "+ "
      "'\\n<</SYS>>\\n\\n' }}{{ ' ' + content.strip() + ' ' + eos_token }}";
  ASSERT_TRUE(ChatTemplate::FromText(llama2, "<s>", "</s>"));
  EXPECT_THAT(Refusal(llama2 + "{% set system_message = 'Vous êtes Vigogne.' %}").message,
              HasSubstr("Vigogne"));
  // What stands under a condition that is never met is not written.
  EXPECT_TRUE(
      ChatTemplate::FromText(llama3 + "{% if tools %}{{ 'Call one: ' }}{% endif %}", "", ""));
}

TEST(ChatTemplateTest, ReadsItFromTheModelsDirectory) {
  const TempDir temp;
  const std::string& dir = temp.path();
  const auto write = [&](const std::string& name, const std::string& text) {
    std::ofstream(dir + "/" + name) << text;
  };
  EXPECT_EQ(ChatTemplate::Load(dir).error().code, ErrorCode::kNotFound);
  const std::string jinja =
      "{{ bos_token }}'[INST]' + message['content'] + '[/INST]' message['content'] + eos_token";
  write("tokenizer_config.json",
        json({{"bos_token", {{"content", "<B>"}}}, {"eos_token", "<E>"}, {"chat_template", jinja}})
            .dump());
  const std::vector<ChatMessage> messages = {{"user", "Hi"}, {"assistant", "Ho"}, {"user", "Hu"}};
  EXPECT_EQ(ChatTemplate::Load(dir).value().Render(messages).value(),
            "<B>[INST]Hi[/INST]Ho<E>[INST]Hu[/INST]");
  write("tokenizer_config.json", json({{"bos_token", "<B>"},
                                       {"eos_token", "<E>"},
                                       {"chat_template",
                                        {{{"name", "tool_use"}, {"template", "x"}},
                                         {{"name", "default"}, {"template", jinja}}}}})
                                     .dump());
  EXPECT_EQ(ChatTemplate::Load(dir).value().family(), "mistral");
  write("given", "'<|im_start|>assistant\\n' '<|im_end|>\\n'");
  EXPECT_EQ(ChatTemplate::Load(dir, dir + "/given").value().family(), "chatml");
  write("chat_template.jinja", "<start_of_turn>");
  EXPECT_EQ(ChatTemplate::Load(dir).error().code, ErrorCode::kUnsupported);
}

TEST(ChatTemplateTest, KnowsWhatDayItIsWhereTheTemplateAsks) {
  const auto made = ChatTemplate::FromText(
      "{{- bos_token }}strftime_now(\"%d %b %Y\") '26 Jul 2024' 'Cutting Knowledge Date: December "
      "2023\\n' message['content'] | trim + '<|eot_id|>' "
      "'<|start_header_id|>assistant<|end_header_id|>\\n\\n'",
      "<B>", "");
  const std::vector<ChatMessage> messages = {{"user", " Hi "}};
  const std::string text = made.value().Render(messages).value();
  EXPECT_THAT(text, testing::MatchesRegex(
                        "<B><.start_header_id.>system<.end_header_id.>\n\nCutting Knowledge Date: "
                        "December 2023\nToday Date: [0-9]+ [A-Za-z]+ 20[0-9]+\n\n<.eot_id.>.*"));
  EXPECT_THAT(text, testing::Not(HasSubstr("26 Jul 2024")));
}

}  // namespace
}  // namespace kvcake
