// A model's chat templates, run as transformers' apply_chat_template runs them.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/status.h"
#include "jinja/template.h"
#include "server/chat_prompt.h"

namespace kvcake {

struct ChatTemplateOptions {
  std::string file = {};                // this file's template instead of the model's own
  std::string content_format = "auto";  // or "string", "openai": as vLLM has them
  jinja::Limits limits = {};
};

// Immutable; every method may be called from any thread.
class ChatTemplate {
 public:
  // The templates of a model directory: chat_template.jinja with additional_chat_templates/*.jinja,
  // or chat_template in tokenizer_config.json, one or a list with names. Both name special tokens
  // as tokenizer_config.json and special_tokens_map.json have them. kNotFound: there is none.
  // kInvalidArgument, kUnsupported: one is no template, or has what is not known here; the message
  // names it, the line and the construct.
  static Result<ChatTemplate> Load(const std::string& dir, const ChatTemplateOptions& options = {});
  // `special_tokens` are variables of the template: {"bos_token": "<s>"}.
  static Result<ChatTemplate> FromText(std::string_view jinja,
                                       const nlohmann::ordered_json& special_tokens,
                                       const ChatTemplateOptions& options = {});

  // The prompt's text, special tokens written out. kInvalidArgument is what the template raises or
  // fails with, kResourceExhausted a limit.
  Result<std::string> Render(const ChatPrompt& prompt) const;
  // What it is for the log: "default, tool_use; contents as openai".
  std::string Describe() const;

 private:
  ChatTemplate(nlohmann::ordered_json special_tokens, const ChatTemplateOptions& options);
  Status Add(const std::string& name, std::string_view jinja);
  Status ReadFiles(const std::string& dir);
  Status ReadConfig(const nlohmann::json& config, const std::string& source);
  void ChooseContentFormat();
  std::string Names() const;
  Result<std::string> Run(const ChatPrompt& prompt, bool keep_parts) const;

  nlohmann::ordered_json special_tokens_;
  ChatTemplateOptions options_;
  std::map<std::string, jinja::Template> templates_;  // by name: "default", "tool_use"
  bool keep_parts_ = false;      // contents stay arrays of parts where the client wrote them so,
  bool texts_as_parts_ = false;  // and texts become such arrays
};

}  // namespace kvcake
