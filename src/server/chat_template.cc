#include "server/chat_template.h"

#include <algorithm>
#include <chrono>
#include <ctime>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "base/json_field.h"
#include "base/json_file.h"
#include "base/utf8.h"
#include "server/template_literals.h"

namespace kvcake {
namespace {

constexpr size_t kTemplateBytesMax = 1 << 20;
constexpr std::string_view kSpace = " \t\n\v\f\r";

bool Has(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

void ReplaceAll(std::string* text, std::string_view from, std::string_view to) {
  std::string out;
  size_t done = 0;
  for (size_t at; (at = text->find(from, done)) != std::string::npos; done = at + from.size()) {
    out.append(*text, done, at - done).append(to);
  }
  *text = out.append(*text, done);
}

// One spelling for what templates write in several: double quotes, no spaces around operators, and
// C for a message's content.
std::string Normalised(std::string_view jinja) {
  std::string text(jinja);
  ReplaceAll(&text, "'", "\"");
  ReplaceAll(&text, " +", "+");
  ReplaceAll(&text, "+ ", "+");
  ReplaceAll(&text, " |", "|");
  ReplaceAll(&text, "| ", "|");
  ReplaceAll(&text, "message[\"content\"]", "C");
  ReplaceAll(&text, "message.content", "C");
  ReplaceAll(&text, "message[\"role\"]", "R");
  ReplaceAll(&text, "message.role", "R");
  return text;
}

// As Python's str.strip does for ASCII.
std::string_view Trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return "";
  return text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

std::string Today() {
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  std::tm local{};
  localtime_r(&now, &local);
  char text[32];
  return {text, std::strftime(text, sizeof(text), "%d %b %Y", &local)};
}

// What follows the optional system message takes turns, the user first.
Status CheckTurns(std::span<const ChatMessage> messages) {
  for (size_t i = 0; i < messages.size(); ++i) {
    if (messages[i].role != (i % 2 == 0 ? "user" : "assistant")) {
      return Fail(ErrorCode::kInvalidArgument,
                  "this model's conversations alternate user/assistant/user/... after an optional "
                  "system message; {} of them is of the {}",
                  i == 0 ? "the first" : "another", messages[i].role);
    }
  }
  return {};
}

// A token as tokenizer_config.json names it: text, or an object with its content.
Result<std::string> TokenText(const JsonField& field) {
  return field.value().is_object() ? field["content"].Text("") : field.Text("");
}

Result<std::string> ReadTemplate(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return Fail(ErrorCode::kNotFound, "cannot open {}", path);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  if (text.size() > kTemplateBytesMax) {
    return Fail(ErrorCode::kInvalidArgument, "{}: a chat template of {} bytes", path, text.size());
  }
  return text;
}

// A model may have several: the one called "default" is for plain conversations.
Result<std::string> TemplateOf(const JsonField& field) {
  if (!field.value().is_array()) return field.Text("");
  ASSIGN_OR_RETURN(const size_t count, field.ArraySize());
  for (size_t i = 0; i < count; ++i) {
    ASSIGN_OR_RETURN(const std::string name, field[i]["name"].Text(""));
    if (name == "default") return field[i]["template"].Text();
  }
  return field.Refuse("without one called \"default\"");
}

}  // namespace

Result<ChatTemplate> ChatTemplate::Load(const std::string& dir, const std::string& template_file) {
  const std::string path = dir + "/tokenizer_config.json";
  nlohmann::json json = nlohmann::json::object();
  if (auto read = ReadJsonFile(path)) {
    json = std::move(*read);
  } else if (read.error().code != ErrorCode::kNotFound) {
    return tl::unexpected<Error>(read.error());
  }
  const JsonField config(json, path);
  ASSIGN_OR_RETURN(std::string bos, TokenText(config["bos_token"]));
  ASSIGN_OR_RETURN(std::string eos, TokenText(config["eos_token"]));
  std::string jinja;
  if (!template_file.empty()) {
    ASSIGN_OR_RETURN(jinja, ReadTemplate(template_file));
  } else if (auto beside = ReadTemplate(dir + "/chat_template.jinja")) {
    jinja = std::move(*beside);
  } else {
    ASSIGN_OR_RETURN(jinja, TemplateOf(config["chat_template"]));
  }
  if (jinja.empty()) {
    return Fail(ErrorCode::kNotFound,
                "{} has no chat template, in chat_template.jinja or tokenizer_config.json: name "
                "one with --chat-template",
                dir);
  }
  return FromText(jinja, std::move(bos), std::move(eos));
}

Result<ChatTemplate> ChatTemplate::FromText(std::string_view jinja, std::string bos,
                                            std::string eos) {
  ChatTemplate made;
  made.jinja_ = jinja;
  made.bos_ = std::move(bos);
  made.eos_ = std::move(eos);
  const std::string text = Normalised(jinja);
  if (Has(text, "<|im_start|>") && Has(text, "<|im_end|>")) {
    RETURN_IF_ERROR(made.ReadChatMl(text, jinja));
  } else if (Has(text, "<|start_header_id|>") && Has(text, "<|eot_id|>")) {
    RETURN_IF_ERROR(made.ReadLlama3(text));
  } else if (Has(text, "[INST]") && Has(text, "<<SYS>>") && Has(text, "content.strip()")) {
    made.family_ = Family::kLlama2;
  } else if (Has(text, "[INST]") && !Has(text, "<<SYS>>")) {
    RETURN_IF_ERROR(made.ReadMistral(text));
  } else {
    return Fail(ErrorCode::kUnsupported,
                "the chat template is of none of the families that kvcake knows (Llama 2, Llama 3, "
                "ChatML, Mistral); give one that is with --chat-template, or use /v1/completions");
  }
  RETURN_IF_ERROR(made.CheckLiterals(jinja));
  return made;
}

// All that may be rendered, but for contents.
std::string ChatTemplate::Specimen() const {
  std::string text;
  const ChatMessage system = {"system", "{}"}, user = {"user", "{}"}, answer = {"assistant", "{}"};
  for (const auto& messages : {std::vector<ChatMessage>{system, user, answer, user, answer, user},
                               std::vector<ChatMessage>{user, answer, user, answer, user}}) {
    // A family may have no place for system messages.
    if (const auto rendered = Render(messages)) text += *rendered + "\n{}";
  }
  if (date_ != Date::kNone) text += "26 Jul 2024";
  // What an earlier answer's thoughts stand in: they are dropped.
  if (drops_thoughts_) text += "<|im_start|>assistant\n<think>\n{}\n</think>\n\n{}";
  return text;
}

Status ChatTemplate::CheckLiterals(std::string_view jinja) const {
  const std::string specimen = Specimen();
  const auto refuse = [this](const std::string& what) {
    return Fail(ErrorCode::kUnsupported,
                "the chat template looks like one of {}, but {}, which kvcake's rendering would "
                "not; give another with --chat-template, or use /v1/completions",
                family(), what);
  };
  bool opens_system = false;
  for (const std::string& literal : WrittenLiterals(jinja)) {
    if (!Has(specimen, literal)) return refuse(fmt::format("writes \"{}\"", Clip(literal, 80)));
    opens_system =
        opens_system || literal.ends_with("<|im_start|>") || Has(literal, "<|im_start|>system");
  }
  const bool writes = !WrittenLiterals(jinja).empty();
  if (family_ == Family::kChatMl && writes && !opens_system) {
    return refuse("writes system messages between no markers");
  }
  return {};
}

Status ChatTemplate::ReadLlama3(std::string_view jinja) {
  family_ = Family::kLlama3;
  begins_with_bos_ = Has(jinja, "bos_token");
  trims_ = Has(jinja, "C|trim");
  if (!Has(jinja, "<|start_header_id|>assistant<|end_header_id|>\\n\\n")) {
    return Fail(
        ErrorCode::kUnsupported,
        "the chat template looks like Llama 3's, but begins the answer in a way that kvcake "
        "does not know");
  }
  if (Has(jinja, "Cutting Knowledge Date: December 2023")) {
    date_ = Has(jinja, "strftime_now") ? Date::kToday : Date::kFixed;
    if (date_ == Date::kFixed && !Has(jinja, "26 Jul 2024")) {
      return Fail(ErrorCode::kUnsupported,
                  "the chat template is of Llama 3.1's kind, but sets another date than kvcake "
                  "knows of");
    }
  }
  return {};
}

Status ChatTemplate::ReadChatMl(std::string_view jinja, std::string_view raw) {
  family_ = Family::kChatMl;
  begins_with_bos_ = Has(jinja, "bos_token");
  trims_ = Has(jinja, "C|trim") || Has(jinja, "C.strip()");
  drops_thoughts_ = Has(jinja, "enable_thinking") && Has(jinja, "</think>");
  const auto unknown = [](const char* what) {
    return Fail(ErrorCode::kUnsupported,
                "the chat template looks like ChatML, but {} in a way that kvcake does not know",
                what);
  };
  if (Has(jinja, "<think>") && !drops_thoughts_) return unknown("thinks");
  if (!Has(jinja, "<|im_start|>assistant\\n\"")) return unknown("begins the answer");
  if (!Has(jinja, "<|im_end|>\\n\"") && !Has(jinja, "<|im_end|>\"+\"\\n\"")) {
    return unknown("ends messages");
  }
  // A default system message stands in one literal, between the two markers; the conversation's own
  // is added to the first of them.
  static constexpr std::string_view kOpen = "<|im_start|>system";
  static constexpr std::string_view kClose = "<|im_end|>";
  for (size_t at = 0; (at = raw.find(kOpen, at)) != std::string_view::npos;) {
    const char quote = at > 0 ? raw[at - 1] : ' ';
    at += kOpen.size();
    std::string_view rest = raw.substr(at);
    if ((quote != '"' && quote != '\'') || !rest.starts_with("\\n")) {
      return unknown("writes system messages");
    }
    rest.remove_prefix(2);
    const std::string_view literal = rest.substr(0, rest.find(quote));
    const size_t end = literal.find(kClose);
    if (literal.empty()) continue;
    if (end == std::string_view::npos || literal.ends_with('\\')) continue;  // of the tools' part
    default_system_ = std::string(literal.substr(0, end));
    ReplaceAll(&*default_system_, "\\n", "\n");
  }
  return {};
}

Status ChatTemplate::ReadMistral(std::string_view jinja) {
  family_ = Family::kMistral;
  begins_with_bos_ = Has(jinja, "bos_token");
  const auto unknown = [](const char* what) {
    return Fail(ErrorCode::kUnsupported,
                "the chat template looks like Mistral's, but {} in a way that kvcake does not know",
                what);
  };
  if (Has(jinja, "[SYSTEM_PROMPT]")) return unknown("writes system messages");
  bool found = false;
  for (const char* open : {" [INST] ", "[INST] ", "[INST]"}) {
    for (const char* close : {" [/INST]", "[/INST]"}) {
      if (found || !Has(jinja, fmt::format("\"{}\"+C+\"{}\"", open, close))) continue;
      found = true;
      open_ = open;
      close_ = close;
    }
  }
  if (!found) return unknown("writes the user's messages");
  trims_ = Has(jinja, "C|trim+eos_token");
  if (!trims_ && !Has(jinja, "C+eos_token")) return unknown("writes the assistant's messages");
  const std::string content = trims_ ? "C|trim" : "C";
  if (Has(jinja, "\" \"+" + content + "+eos_token")) before_answer_ = " ";
  if (Has(jinja, content + "+eos_token+\" \"")) after_answer_ = " ";
  if (!Has(jinja, "system_message")) return {};
  const bool joins = Has(jinja, "system_message+\"\\n\\n\"+C");
  if (joins && Has(jinja, "loop.last and system_message")) {
    system_ = System::kLast;
  } else if (joins && Has(jinja, "loop.first and system_message")) {
    system_ = System::kFirst;
  } else {
    return unknown("writes system messages");
  }
  return {};
}

std::string_view ChatTemplate::family() const {
  switch (family_) {
    case Family::kLlama2:
      return "llama-2";
    case Family::kLlama3:
      return "llama-3";
    case Family::kChatMl:
      return "chatml";
    case Family::kMistral:
      return "mistral";
  }
  return "";
}

Result<std::string> ChatTemplate::Render(std::span<const ChatMessage> messages) const {
  switch (family_) {
    case Family::kLlama2:
      return RenderLlama2(messages);
    case Family::kLlama3:
      return RenderLlama3(messages);
    case Family::kChatMl:
      return RenderChatMl(messages);
    case Family::kMistral:
      return RenderMistral(messages);
  }
  return Fail(ErrorCode::kUnsupported, "no chat template");
}

Result<std::string> ChatTemplate::RenderLlama2(std::span<const ChatMessage> messages) const {
  std::string system;
  if (!messages.empty() && messages[0].role == "system") {
    system = "<<SYS>>\n" + messages[0].content + "\n<</SYS>>\n\n";
    messages = messages.subspan(1);
  }
  RETURN_IF_ERROR(CheckTurns(messages));
  std::string text;
  for (size_t i = 0; i < messages.size(); ++i) {
    const std::string content = (i == 0 ? system : "") + messages[i].content;
    if (messages[i].role == "user") {
      text += fmt::format("{}[INST] {} [/INST]", bos_, Trimmed(content));
    } else {
      text += fmt::format(" {} {}", Trimmed(content), eos_);
    }
  }
  return text;
}

Result<std::string> ChatTemplate::RenderLlama3(std::span<const ChatMessage> messages) const {
  std::string text = begins_with_bos_ ? bos_ : "";
  const auto add = [&](std::string_view role, std::string_view content) {
    text += fmt::format("<|start_header_id|>{}<|end_header_id|>\n\n{}<|eot_id|>", role, content);
  };
  if (date_ != Date::kNone) {
    std::string system = fmt::format("Cutting Knowledge Date: December 2023\nToday Date: {}\n\n",
                                     date_ == Date::kToday ? Today() : "26 Jul 2024");
    if (!messages.empty() && messages[0].role == "system") {
      system += Trimmed(messages[0].content);
      messages = messages.subspan(1);
    }
    add("system", system);
  }
  for (const ChatMessage& message : messages) {
    add(message.role, trims_ ? Trimmed(message.content) : message.content);
  }
  return text + "<|start_header_id|>assistant<|end_header_id|>\n\n";
}

Result<std::string> ChatTemplate::RenderChatMl(std::span<const ChatMessage> messages) const {
  std::string text = begins_with_bos_ ? bos_ : "";
  const auto add = [&](std::string_view role, std::string_view content) {
    text += fmt::format("<|im_start|>{}\n{}<|im_end|>\n", role, content);
  };
  if (default_system_ && (messages.empty() || messages[0].role != "system")) {
    add("system", *default_system_);
  }
  if (drops_thoughts_ && !messages.empty() && messages.back().role != "user") {
    return Fail(ErrorCode::kInvalidArgument,
                "with this model's chat template, the last message must be the user's");
  }
  for (const ChatMessage& message : messages) {
    std::string_view content = message.content;
    if (trims_) content = Trimmed(content);
    if (const size_t end = content.rfind("</think>");
        drops_thoughts_ && message.role == "assistant" && end != std::string_view::npos) {
      content.remove_prefix(end + std::string_view("</think>").size());
      content.remove_prefix(std::min(content.find_first_not_of('\n'), content.size()));
    }
    add(message.role, content);
  }
  return text + "<|im_start|>assistant\n";
}

Result<std::string> ChatTemplate::RenderMistral(std::span<const ChatMessage> messages) const {
  std::string system;
  if (!messages.empty() && messages[0].role == "system") {
    if (system_ == System::kRefused) {
      return Fail(ErrorCode::kInvalidArgument,
                  "this model's chat template has no place for a system message");
    }
    system = messages[0].content + "\n\n";
    messages = messages.subspan(1);
  }
  RETURN_IF_ERROR(CheckTurns(messages));
  const size_t with_system = system_ == System::kLast ? messages.size() - 1 : 0;
  std::string text = begins_with_bos_ ? bos_ : "";
  for (size_t i = 0; i < messages.size(); ++i) {
    const ChatMessage& message = messages[i];
    if (message.role == "user") {
      text += open_ + (i == with_system ? system : "") + message.content + close_;
    } else {
      const std::string_view content = trims_ ? Trimmed(message.content) : message.content;
      text += fmt::format("{}{}{}{}", before_answer_, content, eos_, after_answer_);
    }
  }
  return text;
}

}  // namespace kvcake
