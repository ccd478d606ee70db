#include "bench/answer_reader.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "base/json_file.h"

namespace kvcake::bench {
namespace {

using nlohmann::json;

constexpr size_t kExcerptBytes = 300;

// Null where there is none.
const json& Member(const json& of, const char* name) {
  static const json none;
  if (!of.is_object()) return none;
  const auto at = of.find(name);
  return at == of.end() ? none : *at;
}

std::string_view StringOf(const json& value) {
  if (!value.is_string()) return {};
  return value.get_ref<const std::string&>();
}

std::optional<int> Count(const json& value) {
  if (!value.is_number_integer()) return std::nullopt;
  return value.get<int>();
}

// The text in {"error": {"message": ...}}, {"error": "..."} or {"message": ...}; empty: it is none.
std::string MessageIn(const json& body) {
  const json& error = Member(body, "error");
  if (error.is_string()) return error.get<std::string>();
  const std::string_view message = StringOf(Member(error.is_object() ? error : body, "message"));
  return std::string(message);
}

}  // namespace

bool AnswerReader::Feed(std::string_view bytes, double now_s) {
  const Status status = events_.Feed(bytes, [&](std::string_view data) { TakeEvent(data, now_s); });
  if (!status && answer_.ok()) answer_.SetError("not a stream of events", status.error().message);
  return answer_.ok() && !done_;
}

void AnswerReader::TakeEvent(std::string_view data, double now_s) {
  if (done_ || !answer_.ok()) return;
  if (data == "[DONE]") {
    done_ = true;
    return;
  }
  const auto event = ParseJson(data, "an event");
  if (!event) return answer_.SetError("not a stream of events", event.error().message);
  if (const json& error = Member(*event, "error"); !error.is_null()) {
    const std::string message = MessageIn(*event);
    return answer_.SetError("error in the stream", message.empty() ? error.dump() : message);
  }
  answer_.end_s = now_s;
  const json& choices = Member(*event, "choices");
  if (choices.is_array() && !choices.empty()) TakeChoice(choices[0], now_s);
  const json& usage = Member(*event, "usage");
  if (!usage.is_object()) return;
  answer_.prompt_tokens = Count(Member(usage, "prompt_tokens"));
  answer_.completion_tokens = Count(Member(usage, "completion_tokens"));
  answer_.cached_tokens = Count(Member(Member(usage, "prompt_tokens_details"), "cached_tokens"));
}

void AnswerReader::TakeChoice(const json& choice, double now_s) {
  const json& delta = Member(choice, "delta");
  // Some servers set a model's thoughts apart, by either name: these are tokens, too.
  const bool thinks = !StringOf(Member(delta, "reasoning")).empty() ||
                      !StringOf(Member(delta, "reasoning_content")).empty();
  const std::string_view text =
      StringOf(delta.is_object() ? Member(delta, "content") : Member(choice, "text"));
  const std::string_view finish = StringOf(Member(choice, "finish_reason"));
  answer_.text += text;
  if (!finish.empty()) answer_.finish_reason = finish;
  // An answer without any text has come when it has ended.
  const bool empty = !finish.empty() && answer_.token_s.empty();
  if (!text.empty() || thinks || empty) answer_.token_s.push_back(now_s);
}

Answer AnswerReader::Finish() {
  if (answer_.ok() && (answer_.token_s.empty() || (!done_ && answer_.finish_reason.empty()))) {
    answer_.SetError("ended early", fmt::format("the stream ended after {} events with text",
                                                answer_.token_s.size()));
  }
  return std::move(answer_);
}

std::string ErrorMessage(int status, std::string_view body) {
  std::string message;
  if (const auto parsed = ParseJson(body, "an error")) message = MessageIn(*parsed);
  if (message.empty()) message = body.substr(0, kExcerptBytes);
  return fmt::format("status {}{}{}", status, message.empty() ? "" : ": ", message);
}

}  // namespace kvcake::bench
