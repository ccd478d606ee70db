#include "server/reasoning_parser.h"

#include <utility>

#include "server/tool_call_scanner.h"

namespace kvcake {
namespace {

constexpr std::string_view kThink = "<think>";
constexpr std::string_view kThinkEnd = "</think>";

std::string_view WithoutSpaces(std::string_view text) {
  while (!text.empty() && IsJsonSpace(text.back())) text.remove_suffix(1);
  return text;
}

}  // namespace

bool ReasoningParser::IsName(std::string_view name) {
  return name == "deepseek_r1" || name == "qwen3";
}

ReasoningParser::ReasoningParser(std::string_view name, std::string_view prompt,
                                 std::string_view continued)
    : end_(kThinkEnd) {
  prompt = WithoutSpaces(prompt);
  if (!WithoutSpaces(continued).empty()) {
    // One more than where they are, or 0: npos is as large as can be.
    const size_t begins = continued.rfind(kThink) + 1, ends = continued.rfind(kThinkEnd) + 1;
    part_ = begins > ends ? Part::kThoughts : Part::kAnswer;
  } else if (prompt.ends_with(kThinkEnd)) {
    part_ = Part::kAnswer;
  } else {
    thinks_ = name == "deepseek_r1" || prompt.ends_with(kThink);
  }
}

std::string ReasoningParser::Append(std::string_view text, AnswerDelta* out) {
  std::string answer;
  for (const char c : text) Next(c, &answer, out);
  return answer;
}

void ReasoningParser::Next(char c, std::string* answer, AnswerDelta* out) {
  if (part_ == Part::kStart) {
    if (held_.size() == spaces_ && IsJsonSpace(c)) ++spaces_;
    held_ += c;
    const std::string_view said = std::string_view(held_).substr(spaces_);
    if (said == kThink) {
      held_.clear();
      part_ = Part::kThoughts;
    } else if (!kThink.starts_with(said)) {
      EndStart(answer, out);
    }
  } else if (part_ == Part::kThoughts) {
    if (end_.Next(c, &out->reasoning)) part_ = Part::kAnswer;
  } else {
    *answer += c;
  }
}

// It does not begin with <think>.
void ReasoningParser::EndStart(std::string* answer, AnswerDelta* out) {
  part_ = thinks_ ? Part::kThoughts : Part::kAnswer;
  for (const char c : std::exchange(held_, {})) Next(c, answer, out);
}

std::string ReasoningParser::Finish(AnswerDelta* out) {
  std::string answer;
  if (part_ == Part::kStart) EndStart(&answer, out);
  out->reasoning += end_.TakeHeld();
  return answer;
}

}  // namespace kvcake
