#include "server/chat_template.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "base/json_field.h"
#include "base/json_file.h"
#include "base/read_file.h"
#include "jinja/text.h"
#include "model/tokenizer_config.h"

namespace kvcake {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr size_t kTemplateBytesMax = 1 << 20;
constexpr int kTemplatesMax = 64;
constexpr const char* kDefault = "default";
constexpr const char* kToolUse = "tool_use";
// As transformers marks where the last message ends.
constexpr std::string_view kContinueTag = "CONTINUE_FINAL_MESSAGE_TAG ";

// What the user names may be a pipe, as a shell's <(...) is.
Result<std::string> ReadNamed(const std::string& path) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    return Fail(ErrorCode::kNotFound, "--chat-template: cannot open {}: {}", path,
                std::strerror(errno));
  }
  std::string text(kTemplateBytesMax + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (file.bad()) return Fail(ErrorCode::kIo, "--chat-template: cannot read {}", path);
  text.resize(file.gcount());
  if (text.size() <= kTemplateBytesMax) return text;
  return Fail(ErrorCode::kResourceExhausted, "--chat-template: {} has more than {} bytes", path,
              kTemplateBytesMax);
}

// Parts are joined as vLLM joins them: those of a tool's result always, which templates print as
// they are, also where they go through a user's parts.
void JoinParts(ordered_json* messages, bool of_tools_alone) {
  for (ordered_json& message : *messages) {
    const auto content = message.find("content");
    if (content == message.end() || !content->is_array()) continue;
    if (of_tools_alone && message["role"] != "tool") continue;
    std::vector<std::string> texts;
    for (const ordered_json& part : *content) texts.push_back(part["text"].get<std::string>());
    *content = fmt::format("{}", fmt::join(texts, "\n"));
  }
}

ordered_json TextPart(const std::string& text) { return {{"type", "text"}, {"text", text}}; }

// Makes a part of each text, as vLLM does for a template that takes parts.
void MakeParts(ordered_json* messages) {
  for (ordered_json& message : *messages) {
    const auto content = message.find("content");
    if (content == message.end() || !content->is_string()) continue;
    *content = ordered_json::array({TextPart(content->get<std::string>())});
  }
}

// As transformers does before it runs a template: members that are null are none, and thoughts are
// there under every name that templates read.
void Normalise(ordered_json* messages) {
  for (ordered_json& message : *messages) {
    for (auto member = message.begin(); member != message.end();) {
      member = member->is_null() ? message.erase(member) : std::next(member);
    }
    for (const char* name : {"reasoning_content", "thinking", "reasoning"}) {
      const auto thoughts = message.find(name);
      if (thoughts == message.end()) continue;
      const ordered_json value = *thoughts;
      if (!message.contains("thinking")) message["thinking"] = value;
      message["reasoning_content"] = value;
      break;
    }
  }
}

// Gives every message a content, as vLLM does: an assistant's that calls tools often has none, and
// templates look for words in it.
void FillContents(ordered_json* messages, const ordered_json& empty) {
  for (ordered_json& message : *messages) {
    if (!message.contains("content")) message["content"] = empty;
  }
}

// Marks the end of the last text of the last message, and returns that text.
Result<std::string> MarkEnd(ordered_json* messages) {
  const auto content = messages->back().find("content");
  ordered_json* text = content == messages->back().end() ? nullptr : &*content;
  if (text != nullptr && text->is_array()) {
    text = text->empty() ? nullptr : &text->back()["text"];
  }
  if (text == nullptr || !text->is_string()) {
    return Fail(ErrorCode::kInvalidArgument,
                "continue_final_message wants a text in the last message");
  }
  std::string last = text->get<std::string>();
  *text = last + std::string(kContinueTag);
  return last;
}

// What was written before the mark.
Result<std::string> CutAtEnd(std::string text, const std::string& last) {
  const std::string_view mark = kContinueTag.substr(0, kContinueTag.size() - 1);
  const size_t at = text.rfind(mark);
  if (at == std::string::npos ||
      text.find(jinja::Strip(last, nullptr, jinja::Side::kBoth)) == std::string::npos) {
    return Fail(ErrorCode::kInvalidArgument,
                "the chat template does not write the last message as it is: it cannot be "
                "continued (continue_final_message)");
  }
  const bool keeps_space = text.compare(at, kContinueTag.size(), kContinueTag) == 0;
  text.resize(at);
  return keeps_space ? text : jinja::Strip(text, nullptr, jinja::Side::kRight);
}

}  // namespace

ChatTemplate::ChatTemplate(ordered_json special_tokens, const ChatTemplateOptions& options)
    : special_tokens_(std::move(special_tokens)), options_(options) {}

Result<ChatTemplate> ChatTemplate::FromText(std::string_view jinja,
                                            const ordered_json& special_tokens,
                                            const ChatTemplateOptions& options) {
  ChatTemplate chat(special_tokens, options);
  RETURN_IF_ERROR(chat.Add(kDefault, jinja));
  chat.ChooseContentFormat();
  return chat;
}

Result<ChatTemplate> ChatTemplate::Load(const std::string& dir,
                                        const ChatTemplateOptions& options) {
  const std::string config_path = dir + "/tokenizer_config.json";
  Result<json> config = ReadJsonFile(config_path);
  if (!config && config.error().code != ErrorCode::kNotFound) {
    return tl::unexpected<Error>(config.error());
  }
  if (!config) config = json::object();
  ASSIGN_OR_RETURN(const TokenizerConfig special, TokenizerConfig::Read(dir));
  ordered_json tokens = ordered_json::object();
  for (const auto& [role, content] : special.names) tokens[role] = content;
  if (!special.extra.empty()) tokens["additional_special_tokens"] = special.extra;
  ChatTemplate chat(std::move(tokens), options);
  if (!options.file.empty()) {
    ASSIGN_OR_RETURN(const std::string text, ReadNamed(options.file));
    if (auto added = chat.Add(kDefault, text); !added) {
      return Fail(added.error().code, "{}: {}", options.file, added.error().message);
    }
  } else {
    RETURN_IF_ERROR(chat.ReadFiles(dir));
    if (chat.templates_.empty()) RETURN_IF_ERROR(chat.ReadConfig(*config, config_path));
  }
  if (chat.templates_.empty()) {
    return Fail(ErrorCode::kNotFound,
                "{} has no chat template (chat_template.jinja, or chat_template in "
                "tokenizer_config.json): give one with --chat-template FILE",
                dir);
  }
  chat.ChooseContentFormat();
  return chat;
}

Status ChatTemplate::Add(const std::string& name, std::string_view jinja) {
  auto parsed = jinja::Template::Parse(jinja);
  if (!parsed) {
    return Fail(parsed.error().code, "the chat template{}: {}",
                name == kDefault ? "" : fmt::format(" \"{}\"", name), parsed.error().message);
  }
  if (templates_.size() == kTemplatesMax) {
    return Fail(ErrorCode::kResourceExhausted, "there are more than {} chat templates",
                kTemplatesMax);
  }
  templates_.insert_or_assign(name, std::move(*parsed));
  return {};
}

Status ChatTemplate::ReadFiles(const std::string& dir) {
  namespace fs = std::filesystem;
  std::error_code none;
  const auto read = [&](const std::string& name, const std::string& path) -> Status {
    ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kTemplateBytesMax));
    if (auto added = Add(name, text); !added) {
      return Fail(added.error().code, "{}: {}", path, added.error().message);
    }
    return {};
  };
  const std::string own = dir + "/chat_template.jinja";
  if (fs::exists(own, none)) RETURN_IF_ERROR(read(kDefault, own));
  for (const auto& entry : fs::directory_iterator(dir + "/additional_chat_templates", none)) {
    if (entry.path().extension() != ".jinja") continue;
    RETURN_IF_ERROR(read(entry.path().stem().string(), entry.path().string()));
  }
  return {};
}

Status ChatTemplate::ReadConfig(const json& config, const std::string& source) {
  const JsonField given = JsonField(config, source)["chat_template"];
  if (given.null()) return {};
  if (given.value().is_string()) return Add(kDefault, given.value().get_ref<const std::string&>());
  if (given.value().is_object()) {
    for (const auto& [name, value] : given.value().items()) {
      ASSIGN_OR_RETURN(const std::string text, given[name].Text());
      RETURN_IF_ERROR(Add(name, text));
    }
    return {};
  }
  ASSIGN_OR_RETURN(const size_t count, given.ArraySize());
  for (size_t i = 0; i < count; ++i) {
    ASSIGN_OR_RETURN(const std::string name, given[i]["name"].Text());
    ASSIGN_OR_RETURN(const std::string text, given[i]["template"].Text());
    RETURN_IF_ERROR(Add(name, text));
  }
  return {};
}

// vLLM's "auto" looks for a loop over a message's content. Asking the template is surer: one that
// writes a part's text, and nothing of how Python writes an array, takes parts; and where it does
// not write a text that stands alone, it takes nothing else.
void ChatTemplate::ChooseContentFormat() {
  if (options_.content_format == "string") return;
  static constexpr const char* kText = "kvcake-content-probe";
  const auto takes = [this](const ordered_json& content) {
    ChatPrompt probe;
    probe.messages = {{{"role", "user"}, {"content", content}}};
    const auto text = Run(probe, /*keep_parts=*/true);
    return text && text->find(kText) != std::string::npos &&
           text->find("'type'") == std::string::npos && text->find("\"type\"") == std::string::npos;
  };
  const bool takes_parts = takes(ordered_json::array({TextPart(kText)}));
  keep_parts_ = takes_parts || options_.content_format == "openai";
  texts_as_parts_ = takes_parts && !takes(kText);
}

std::string ChatTemplate::Names() const {
  std::vector<std::string_view> names;
  for (const auto& entry : templates_) names.push_back(entry.first);
  return fmt::format("{}", fmt::join(names, ", "));
}

std::string ChatTemplate::Describe() const {
  return fmt::format("{}; contents as {}", Names(), keep_parts_ ? "openai" : "string");
}

Result<std::string> ChatTemplate::Render(const ChatPrompt& prompt) const {
  return Run(prompt, keep_parts_);
}

Result<std::string> ChatTemplate::Run(const ChatPrompt& prompt, bool keep_parts) const {
  const bool for_tools = !prompt.tools.is_null() && templates_.contains(kToolUse);
  const auto chosen = templates_.find(for_tools ? kToolUse : kDefault);
  if (chosen == templates_.end()) {
    return Fail(ErrorCode::kInvalidArgument,
                "the model has chat templates ({}) and none of them is \"{}\": give one with "
                "--chat-template FILE",
                Names(), kDefault);
  }
  ordered_json context = special_tokens_;
  for (const auto& [name, value] : prompt.kwargs.items()) context[name] = value;
  ordered_json& messages = context["messages"] = prompt.messages;
  JoinParts(&messages, /*of_tools_alone=*/keep_parts);
  if (texts_as_parts_) MakeParts(&messages);
  Normalise(&messages);
  std::string last;
  if (prompt.continue_final_message) {
    ASSIGN_OR_RETURN(last, MarkEnd(&messages));
  }
  FillContents(&messages, texts_as_parts_ ? ordered_json::array() : ordered_json(""));
  context["tools"] = prompt.tools;
  context["documents"] = prompt.documents;
  context["add_generation_prompt"] = prompt.add_generation_prompt;
  auto text = chosen->second.Render(context, options_.limits);
  if (!text) {
    return Fail(text.error().code, "the chat template does not take this conversation: {}",
                text.error().message);
  }
  return prompt.continue_final_message ? CutAtEnd(std::move(*text), last) : text;
}

}  // namespace kvcake
