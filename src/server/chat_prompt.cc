#include "server/chat_prompt.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/json_file.h"
#include "base/json_watch.h"
#include "server/unsupported_fields.h"

namespace kvcake {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr size_t kShortBytesMax = 4096;
constexpr int kArgumentsDepthMax = 32;

// Members of the largest object.
size_t MostMembers(const json& value) {
  size_t most = value.is_object() ? value.size() : 0;
  if (!value.is_structured()) return 0;
  for (const json& inner : value) most = std::max(most, MostMembers(inner));
  return most;
}

// A number that may have been an integer which no type of the parser holds.
bool HasHuge(const json& value) {
  constexpr double kIntegersEnd = 0x1p63;
  if (value.is_number_float()) return std::fabs(value.get<double>()) >= kIntegersEnd;
  return value.is_structured() && std::any_of(value.begin(), value.end(), HasHuge);
}

// What a text, which is JSON, has as it is written.
class WrittenJson : public JsonWatch {
 public:
  explicit WrittenJson(std::string_view text) { json::sax_parse(text, this); }

  // The most members of one object. A name that is written again counts again, with what it once
  // meant: the parser that keeps their order looks each up among all before it.
  size_t most_members() const { return most_members_; }
  // The steps that this parser takes so: the squares of all objects' members.
  uint64_t look_ups() const { return look_ups_; }
  // Whether there is an integer that no type of the parser holds.
  bool has_huge_integer() const { return has_huge_integer_; }

  bool start_object(size_t) override {
    members_.push_back(0);
    return true;
  }
  bool key(string_t&) override {
    most_members_ = std::max(most_members_, ++members_.back());
    return true;
  }
  bool end_object() override {
    look_ups_ += uint64_t{members_.back()} * members_.back();
    members_.pop_back();
    return true;
  }
  bool number_float(number_float_t, const string_t& text) override {
    has_huge_integer_ = has_huge_integer_ || text.find_first_of(".Ee") == text.npos;
    return true;
  }

 private:
  std::vector<size_t> members_;  // of the objects that are open
  size_t most_members_ = 0;
  uint64_t look_ups_ = 0;
  bool has_huge_integer_ = false;
};

// Whether a text is an object. Makes nothing of it, which may be large.
bool IsObjectText(const std::string& text) {
  const size_t begins = text.find_first_not_of("\xef\xbb\xbf \t\r\n");  // a byte order mark, too
  return begins != text.npos && text[begins] == '{' && json::accept(text);
}

class ChatReader {
 public:
  ChatReader(const ChatLimits& limits, RequestFields* fields, ChatPrompt* prompt)
      : limits_(limits), fields_(*fields), prompt_(*prompt) {}

  void Read(std::string_view text) {
    static constexpr const char* kPrinted[] = {"messages", "tools", "documents",
                                               "chat_template_kwargs"};
    const WrittenJson written(text);
    for (const char* name : kPrinted) {
      if (MostMembers(fields_[name].value()) > limits_.object_members_max) {
        return fields_.Fail(name, fmt::format("has an object with more than {} members",
                                              limits_.object_members_max));
      }
      if (written.has_huge_integer() && HasHuge(fields_[name].value())) {
        return fields_.Fail(name, "has an integer beyond 64 bits");
      }
    }
    CheckMessages();
    CheckTools();
    CheckDocuments();
    ReadFlags();
    if (written.most_members() > limits_.object_members_max) {
      fields_.Fail({.message = fmt::format("the request has an object with more than {} members",
                                           limits_.object_members_max)});
    }
    if (written.look_ups() + argument_look_ups_ > limits_.look_ups_max) {
      fields_.Fail({.message = fmt::format("the request has too many objects with many members: "
                                           "the squares of their numbers of members add up to more "
                                           "than the limit of {}",
                                           limits_.look_ups_max)});
    }
    if (fields_.error()) return;
    ordered_json body = ordered_json::parse(text);
    prompt_.messages = std::move(body["messages"]);
    for (ordered_json& message : prompt_.messages) Normalise(&message);
    if (!AsksForNothing(fields_["tools"].value())) prompt_.tools = std::move(body["tools"]);
    if (!AsksForNothing(fields_["documents"].value())) {
      prompt_.documents = std::move(body["documents"]);
    }
    if (!fields_["chat_template_kwargs"].null()) {
      prompt_.kwargs = std::move(body["chat_template_kwargs"]);
    }
    // As vLLM has it.
    if (!fields_["reasoning_effort"].null() && !prompt_.kwargs.contains("reasoning_effort")) {
      prompt_.kwargs["reasoning_effort"] = std::move(body["reasoning_effort"]);
    }
  }

 private:
  void CheckMessages() {
    const JsonField list = fields_["messages"];
    const json& messages = list.value();
    if (!messages.is_array() || messages.empty()) {
      return fields_.Fail("messages", "must be an array with at least one message");
    }
    if (messages.size() > limits_.messages_max) {
      return fields_.Fail("messages", fmt::format("has {} messages, more than the limit of {}",
                                                  messages.size(), limits_.messages_max));
    }
    for (size_t i = 0; i < messages.size(); ++i) {
      RequestFields message(list[i]);
      CheckMessage(&message);
      if (message.error()) return fields_.Fail(*message.error());
    }
  }

  void CheckMessage(RequestFields* message) {
    static constexpr std::string_view kRoles[] = {"system", "developer", "user", "assistant",
                                                  "tool"};
    std::string role;
    message->Read("role", &role, kShortBytesMax);
    if (std::find(std::begin(kRoles), std::end(kRoles), role) == std::end(kRoles)) {
      message->Fail("role", "must be system, developer, user, assistant or tool");
    }
    for (const char* unsupported : {"function_call", "audio"}) {
      if (!AsksForNothing((*message)[unsupported].value())) {
        message->Fail(unsupported, "is not supported by this server");
      }
    }
    const bool calls = !AsksForNothing((*message)["tool_calls"].value());
    if (calls && role != "assistant") message->Fail("tool_calls", "are an assistant's alone");
    if (calls) CheckToolCalls(message);
    // Who has called a tool may have said nothing, or only thought, and a tool may return nothing.
    CheckContent(message, role);
    std::string ignored;
    for (const char* text : {"name", "tool_call_id"}) message->Read(text, &ignored, kShortBytesMax);
    for (const char* text : {"reasoning_content", "reasoning"}) {
      message->Read(text, &ignored, std::string::npos);
    }
  }

  // A text, or an array of parts that are texts; an assistant's may say that it refuses.
  static void CheckContent(RequestFields* message, const std::string& role) {
    const bool may_lack = role == "assistant" || role == "tool";
    const JsonField parts = (*message)["content"];
    const json& content = parts.value();
    if (content.is_string() || (may_lack && parts.null())) return;
    if (!content.is_array()) {
      return message->Fail("content", "must be a text or an array of parts with text");
    }
    for (size_t i = 0; i < content.size(); ++i) {
      RequestFields part(parts[i]);
      std::string type;
      part.Read("type", &type, kShortBytesMax);
      const bool refuses = type == "refusal" && role == "assistant";
      if (type != "text" && !refuses) {
        part.Fail("type", "must be \"text\": this server takes no other parts");
      }
      const char* const text = refuses ? "refusal" : "text";
      if (!part[text].value().is_string()) part.Fail(text, "must be a text");
      if (part.error()) return message->Fail(*part.error());
    }
  }

  void CheckToolCalls(RequestFields* message) {
    const JsonField calls = (*message)["tool_calls"];
    if (!calls.value().is_array()) return message->Fail("tool_calls", "must be an array");
    if (calls.value().size() > limits_.tool_calls_max) {
      return message->Fail("tool_calls",
                           fmt::format("has more than {} calls", limits_.tool_calls_max));
    }
    for (size_t i = 0; i < calls.value().size(); ++i) {
      RequestFields call(calls[i]);
      CheckFunctionType(&call);
      RequestFields function(call["function"]);
      CheckName(&function);
      CheckArguments(&function);
      if (function.error()) call.Fail(*function.error());
      if (call.error()) return message->Fail(*call.error());
    }
  }

  static void CheckFunctionType(RequestFields* object) {
    std::string type = "function";
    object->Read("type", &type, kShortBytesMax);
    if (type != "function") object->Fail("type", "must be \"function\"");
  }

  static void CheckName(RequestFields* function) {
    std::string name;
    function->Read("name", &name, kShortBytesMax);
    if (name.empty()) function->Fail("name", "is missing or empty");
  }

  // An object, or a text, as OpenAI has it. The text is an object that is written out, unless the
  // model that wrote it did not get that right: a chat goes on with what this server has answered.
  void CheckArguments(RequestFields* function) {
    const json& arguments = (*function)["arguments"].value();
    if (arguments.is_null() || arguments.is_object()) return;
    if (!arguments.is_string()) {
      return function->Fail("arguments", "must be a JSON object written out in a text");
    }
    const auto& text = arguments.get_ref<const std::string&>();
    if (!IsObjectText(text)) return;
    const auto parsed = ParseJson(
        text, "arguments",
        {.max_bytes = std::numeric_limits<uint64_t>::max(), .max_depth = kArgumentsDepthMax});
    if (!parsed) {
      return function->Fail("arguments",
                            fmt::format("is nested more than {} deep", kArgumentsDepthMax));
    }
    const WrittenJson written(text);
    argument_look_ups_ += written.look_ups();
    if (written.most_members() > limits_.object_members_max) {
      function->Fail("arguments", fmt::format("has an object with more than {} members",
                                              limits_.object_members_max));
    }
    if (written.has_huge_integer() && HasHuge(*parsed)) {
      function->Fail("arguments", "has an integer beyond 64 bits");
    }
  }

  void CheckTools() {
    const JsonField tools = fields_["tools"];
    if (AsksForNothing(tools.value())) return;
    if (!tools.value().is_array()) return fields_.Fail("tools", "must be an array");
    if (tools.value().size() > limits_.tools_max) {
      return fields_.Fail("tools", fmt::format("has {} tools, more than the limit of {}",
                                               tools.value().size(), limits_.tools_max));
    }
    for (size_t i = 0; i < tools.value().size(); ++i) {
      RequestFields tool(tools[i]);
      CheckFunctionType(&tool);
      RequestFields function(tool["function"]);
      CheckName(&function);
      if (!AsksForNothing(function["strict"].value())) {
        function.Fail("strict", "is not supported by this server: leave it out");
      }
      if (function.error()) tool.Fail(*function.error());
      if (tool.error()) return fields_.Fail(*tool.error());
    }
  }

  void CheckDocuments() {
    const JsonField documents = fields_["documents"];
    if (AsksForNothing(documents.value())) return;
    if (!documents.value().is_array()) {
      return fields_.Fail("documents", "must be an array of objects");
    }
    for (size_t i = 0; i < documents.value().size(); ++i) {
      RequestFields document(documents[i]);
      if (document.error()) return fields_.Fail(*document.error());
    }
  }

  void ReadFlags() {
    fields_.Read("add_generation_prompt", &prompt_.add_generation_prompt);
    fields_.Read("continue_final_message", &prompt_.continue_final_message);
    if (prompt_.continue_final_message && fields_["add_generation_prompt"].null()) {
      prompt_.add_generation_prompt = false;
    }
    if (prompt_.continue_final_message && prompt_.add_generation_prompt) {
      fields_.Fail("continue_final_message", "cannot be true when add_generation_prompt is");
    }
    std::string effort;
    fields_.Read("reasoning_effort", &effort, kShortBytesMax);
    const JsonField kwargs = fields_["chat_template_kwargs"];
    if (kwargs.null()) return;
    if (!kwargs.value().is_object()) {
      return fields_.Fail("chat_template_kwargs", "must be an object");
    }
    for (const char* own : {"messages", "tools", "documents", "add_generation_prompt"}) {
      if (kwargs.value().contains(own)) {
        fields_.Fail("chat_template_kwargs", fmt::format("has {}, a field of the request", own));
      }
    }
  }

  static void Normalise(ordered_json* message) {
    if ((*message)["role"] == "developer") (*message)["role"] = "system";  // OpenAI's newer name
    const auto content = message->find("content");
    if (content != message->end() && content->is_array()) {
      for (ordered_json& part : *content) {
        if (part["type"] == "refusal") part = {{"type", "text"}, {"text", part["refusal"]}};
      }
    }
    const auto calls = message->find("tool_calls");
    if (calls == message->end()) return;
    if (!calls->is_array() || calls->empty()) {
      message->erase("tool_calls");
      return;
    }
    for (ordered_json& call : *calls) {
      ordered_json& arguments = call["function"]["arguments"];
      if (arguments.is_object()) continue;
      const bool written = arguments.is_string() && IsObjectText(arguments.get_ref<std::string&>());
      arguments = written ? ordered_json::parse(arguments.get_ref<const std::string&>())
                          : ordered_json::object();
    }
  }

  const ChatLimits& limits_;
  RequestFields& fields_;
  ChatPrompt& prompt_;
  uint64_t argument_look_ups_ = 0;  // in arguments that are texts
};

}  // namespace

std::string ContinuedText(const ChatPrompt& prompt) {
  if (!prompt.continue_final_message || prompt.messages.empty()) return "";
  const auto content = prompt.messages.back().find("content");
  if (content == prompt.messages.back().end()) return "";
  if (content->is_string()) return content->get<std::string>();
  std::string text;
  for (const ordered_json& part : *content) text += part.value("text", "");
  return text;
}

ChatPrompt ReadChatPrompt(std::string_view text, const ChatLimits& limits, RequestFields* fields) {
  ChatPrompt prompt;
  ChatReader(limits, fields, &prompt).Read(text);
  return prompt;
}

}  // namespace kvcake
