// Hermes and Qwen: <tool_call>{"name": ..., "arguments": {...}}</tool_call>, again for each call.
#include <utility>

#include "server/tool_call_scanner.h"
#include "server/tool_parser.h"

namespace kvcake {
namespace {

constexpr std::string_view kHermesOpen = "<tool_call>";

class HermesParser : public ToolParser {
 public:
  using ToolParser::ToolParser;

  void Finish(AnswerDelta* out) override {
    if (in_call_) GiveUp(out);
    AddContent(finder_.TakeHeld(), out);
  }

 private:
  void Next(char c, AnswerDelta* out) override {
    if (!in_call_) {
      std::string text;
      if (finder_.Next(c, &text)) Open();
      return AddContent(text, out);
    }
    if (raw_.empty() && IsJsonSpace(c)) {
      skipped_ += c;
      return;
    }
    raw_ += c;
    const ToolCallScanner::State state = scanner_.Next(c);
    if (state != ToolCallScanner::State::kBad && scanner_.is_call()) {
      if (!std::exchange(begun_, true)) BeginCall(scanner_.name(), out);
      AddArguments(scanner_.TakeArguments(), out);
    }
    if (state == ToolCallScanner::State::kDone) in_call_ = false;
    if (state == ToolCallScanner::State::kBad) GiveUp(out);
  }

  void Open() {
    in_call_ = true;
    begun_ = false;
    scanner_ = {};
    skipped_.clear();
    raw_.clear();
  }

  // It is no call, or its text has gone wrong. The last character may begin another marker.
  void GiveUp(AnswerDelta* out) {
    in_call_ = false;
    std::string last;
    if (!raw_.empty()) {
      last = raw_.back();
      raw_.pop_back();
    }
    AddContent(kHermesOpen, out);  // which is none behind a call
    AddContent(skipped_ + raw_, out);
    Append(last, out);
  }

  MarkerFinder finder_{kHermesOpen};
  bool in_call_ = false;
  ToolCallScanner scanner_;
  std::string skipped_;  // spaces before the object
  std::string raw_;      // the object so far
  bool begun_ = false;   // the call has been told
};

}  // namespace

std::unique_ptr<ToolParser> MakeHermesParser(uint64_t salt) {
  return std::make_unique<HermesParser>(salt);
}

}  // namespace kvcake
