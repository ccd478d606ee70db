#include "server/answer_parser.h"

namespace kvcake {

AnswerParser::AnswerParser(const Options& options)
    : parallel_tool_calls_(options.parallel_tool_calls),
      include_reasoning_(options.include_reasoning),
      tools_(MakeToolParser(options.tool_parser, options.salt)) {
  if (!options.reasoning_parser.empty()) {
    reasoning_.emplace(options.reasoning_parser, options.prompt, options.continued);
  }
}

AnswerDelta AnswerParser::Take(std::string_view text, bool ends) {
  AnswerDelta delta;
  std::string answer(text);
  if (reasoning_) {
    answer = reasoning_->Append(text, &delta);
    if (ends) answer += reasoning_->Finish(&delta);
    if (!include_reasoning_) delta.reasoning.clear();
  }
  if (!tools_) {
    delta.content = std::move(answer);
    return delta;
  }
  tools_->Append(answer, &delta);
  if (ends) tools_->Finish(&delta);
  if (!parallel_tool_calls_) {
    std::erase_if(delta.calls, [](const ToolCallDelta& call) { return call.index > 0; });
  }
  return delta;
}

}  // namespace kvcake
