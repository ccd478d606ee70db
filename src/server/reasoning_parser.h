// What a model thinks before it answers: <think>...</think> at the start of its text.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "server/tool_parser.h"

namespace kvcake {

class ReasoningParser {
 public:
  // vLLM's names: deepseek_r1, qwen3.
  static bool IsName(std::string_view name);
  // `prompt` is the text that the answer follows. Where it ends in <think>, the answer begins with
  // thoughts, where it ends in </think>, there are none; else deepseek_r1 begins with thoughts,
  // and qwen3 if it says so. In a message that the answer goes on with, `continued`, the last of
  // these marks counts, wherever it is; without one it has no thoughts.
  ReasoningParser(std::string_view name, std::string_view prompt, std::string_view continued = {});

  // Adds thoughts to the delta, and returns what is none of them. The pieces say the same however
  // the text is split.
  std::string Append(std::string_view text, AnswerDelta* out);
  std::string Finish(AnswerDelta* out);

 private:
  enum class Part { kStart, kThoughts, kAnswer };

  void Next(char c, std::string* answer, AnswerDelta* out);
  void EndStart(std::string* answer, AnswerDelta* out);

  bool thinks_ = false;  // also where it does not say so
  Part part_ = Part::kStart;
  std::string held_;   // of the start, which may become <think>
  size_t spaces_ = 0;  // that it begins with
  MarkerFinder end_;
};

}  // namespace kvcake
