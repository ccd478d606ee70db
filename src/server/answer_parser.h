// The text of a chat's answer as what it means: thoughts, content, and calls of tools.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "server/reasoning_parser.h"
#include "server/tool_parser.h"

namespace kvcake {

class AnswerParser {
 public:
  struct Options {
    std::string tool_parser = {};       // by name; empty: all is content
    bool parallel_tool_calls = true;    // else what follows the first is dropped
    std::string reasoning_parser = {};  // by name; empty: thoughts are content
    bool include_reasoning = true;      // else thoughts are dropped
    std::string_view prompt = {};       // the text that the answer follows; needed for reasoning
    std::string_view continued = {};    // the message that it goes on with; likewise
    uint64_t salt = 0;                  // for ids of calls
  };
  explicit AnswerParser(const Options& options);

  // What is new; the text's last piece has `ends`.
  AnswerDelta Take(std::string_view text, bool ends);
  // A tool has been called.
  bool called() const { return tools_ && tools_->called(); }
  bool parses() const { return tools_ || reasoning_; }

 private:
  const bool parallel_tool_calls_;
  const bool include_reasoning_;
  std::unique_ptr<ToolParser> tools_;  // may be null
  std::optional<ReasoningParser> reasoning_;
};

}  // namespace kvcake
