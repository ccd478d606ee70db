#include "server/tool_call_scanner.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>
#include <utility>

namespace kvcake {
namespace {

constexpr size_t kDepthMax = 256;
constexpr std::string_view kScalarStarts = "-0123456789tfn";

}  // namespace

bool IsJsonSpace(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

JsonValueScanner::State JsonValueScanner::Open(char c) {
  if (open_.size() == kDepthMax) return State::kBad;
  open_ += c == '{' ? '}' : ']';
  return State::kMore;
}

JsonValueScanner::State JsonValueScanner::Close(char c) {
  if (open_.empty()) return State::kDoneBefore;  // of a number, at the end of what holds it
  if (open_.back() != c) return State::kBad;
  open_.pop_back();
  return open_.empty() ? State::kDone : State::kMore;
}

JsonValueScanner::State JsonValueScanner::Next(char c) {
  if (in_string_) {
    if (std::exchange(escaped_, false)) return State::kMore;
    escaped_ = c == '\\';
    if (c != '"') return State::kMore;
    in_string_ = false;
    return open_.empty() ? State::kDone : State::kMore;
  }
  const bool first = !std::exchange(begun_, true);
  if (c == '"') {
    if (!first && open_.empty()) return State::kBad;
    in_string_ = true;
    return State::kMore;
  }
  if (c == '{' || c == '[') return !first && open_.empty() ? State::kBad : Open(c);
  if (first) return kScalarStarts.find(c) == std::string_view::npos ? State::kBad : State::kMore;
  if (c == '}' || c == ']') return Close(c);
  if (open_.empty() && (c == ',' || IsJsonSpace(c))) return State::kDoneBefore;
  return State::kMore;
}

std::string JsonValueScanner::Escaped(char c) const {
  if (!in_string_ || static_cast<unsigned char>(c) >= ' ') return {c};
  const std::string escaped = c == '\n' ? "\\n" : c == '\t' ? "\\t" : fmt::format("\\u{:04x}", c);
  // A backslash before it, as where a shell's line goes on, is one that was meant.
  return escaped_ ? "\\" + escaped : escaped;
}

std::string ToolCallScanner::TakeArguments() { return std::exchange(arguments_, {}); }

ToolCallScanner::State ToolCallScanner::Next(char c) {
  if (part_ == Part::kKey) return InKey(c);
  if (part_ == Part::kValue) return InValue(c);
  if (part_ == Part::kAfterValue) return AfterValue(c);
  if (part_ != Part::kStart && IsJsonSpace(c)) return State::kMore;
  switch (part_) {
    case Part::kStart:
      part_ = Part::kKeyOrEnd;
      return c == '{' ? State::kMore : State::kBad;
    case Part::kKeyOrEnd:
    case Part::kBeforeKey:
      part_ = Part::kKey;
      key_.clear();
      scanner_ = {};
      return c == '"' ? InKey(c) : State::kBad;
    case Part::kColon:
      part_ = Part::kBeforeValue;
      return c == ':' ? State::kMore : State::kBad;
    default:
      part_ = Part::kValue;
      value_.clear();
      scanner_ = {};
      return InValue(c);
  }
}

ToolCallScanner::State ToolCallScanner::InKey(char c) {
  key_ += c;
  if (scanner_.Next(c) == JsonValueScanner::State::kDone) part_ = Part::kColon;
  return State::kMore;
}

ToolCallScanner::State ToolCallScanner::InValue(char c) {
  const std::string escaped = scanner_.Escaped(c);
  const JsonValueScanner::State state = scanner_.Next(c);
  if (state == JsonValueScanner::State::kBad) return State::kBad;
  if (state != JsonValueScanner::State::kDoneBefore) {
    if (IsArguments() && !arguments_done_) {
      arguments_begun_ = true;
      arguments_ += escaped;
    } else if (key_ == "\"name\"") {
      value_ += c;
    }
  }
  if (state == JsonValueScanner::State::kMore) return State::kMore;
  if (!EndValue()) return State::kBad;
  part_ = Part::kAfterValue;
  return state == JsonValueScanner::State::kDone ? State::kMore : AfterValue(c);
}

bool ToolCallScanner::EndValue() {
  if (IsArguments()) arguments_done_ = true;
  if (key_ != "\"name\"" || !name_.empty()) return true;
  const auto name = nlohmann::json::parse(value_, nullptr, /*allow_exceptions=*/false);
  if (!name.is_string() || name.get_ref<const std::string&>().empty()) return false;
  name_ = name.get<std::string>();
  return true;
}

ToolCallScanner::State ToolCallScanner::AfterValue(char c) {
  if (IsJsonSpace(c)) return State::kMore;
  if (c == '}') return is_call() ? State::kDone : State::kBad;
  part_ = Part::kBeforeKey;
  return c == ',' ? State::kMore : State::kBad;
}

}  // namespace kvcake
