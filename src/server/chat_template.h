// A conversation as the text that a model was trained on. Templates are Jinja programs; kvcake runs
// none, but recognises the families Llama 2, Llama 3, ChatML and Mistral by what their templates
// write, and refuses the others.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace kvcake {

struct ChatMessage {
  std::string role;  // "system", "user" or "assistant"
  std::string content;
};

class ChatTemplate {
 public:
  // The template of a model directory: chat_template.jinja, or chat_template in
  // tokenizer_config.json, which also names the BOS and EOS tokens. kNotFound: there is none.
  // kUnsupported: of no family that is known here.
  // With `template_file`, that file's template instead.
  static Result<ChatTemplate> Load(const std::string& dir, const std::string& template_file = "");
  static Result<ChatTemplate> FromText(std::string_view jinja, std::string bos, std::string eos);

  // The text up to where the assistant's answer begins, special tokens written out. What the
  // template itself would not take is kInvalidArgument.
  Result<std::string> Render(std::span<const ChatMessage> messages) const;
  std::string_view family() const;  // "llama-3"
  // Whether the template has this word: a variable that it has not changes no text.
  bool Mentions(std::string_view word) const { return jinja_.find(word) != std::string::npos; }

 private:
  enum class Family { kLlama2, kLlama3, kChatMl, kMistral };
  enum class Date { kNone, kFixed, kToday };      // of Llama 3.1 and later
  enum class System { kRefused, kFirst, kLast };  // the user message of Mistral it joins

  // Refuses a template with a literal that no rendering would have.
  Status CheckLiterals(std::string_view jinja) const;
  std::string Specimen() const;
  Status ReadLlama3(std::string_view jinja);
  Status ReadChatMl(std::string_view jinja, std::string_view raw);
  Status ReadMistral(std::string_view jinja);
  Result<std::string> RenderLlama2(std::span<const ChatMessage> messages) const;
  Result<std::string> RenderLlama3(std::span<const ChatMessage> messages) const;
  Result<std::string> RenderChatMl(std::span<const ChatMessage> messages) const;
  Result<std::string> RenderMistral(std::span<const ChatMessage> messages) const;

  std::string jinja_;
  Family family_ = Family::kChatMl;
  std::string bos_, eos_;
  bool begins_with_bos_ = false;
  bool trims_ = false;  // contents; in Mistral, the assistant's
  Date date_ = Date::kNone;
  std::optional<std::string> default_system_;
  bool drops_thoughts_ = false;
  System system_ = System::kRefused;
  std::string open_, close_, before_answer_, after_answer_;  // of Mistral
};

}  // namespace kvcake
