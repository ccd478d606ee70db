// Llama 3.x: the answer is {"name": ..., "parameters": {...}}, perhaps behind <|python_tag|>, and
// other calls follow behind ";".
#include <utility>

#include "server/tool_call_scanner.h"
#include "server/tool_parser.h"

namespace kvcake {
namespace {

constexpr std::string_view kPythonTag = "<|python_tag|>";

class Llama3Parser : public ToolParser {
 public:
  using ToolParser::ToolParser;

  void Finish(AnswerDelta* out) override {
    AddContent(raw_, out);  // which is none behind a call
    raw_.clear();
  }

 private:
  enum class Part { kBefore, kCall, kAfter, kText };

  void Next(char c, AnswerDelta* out) override {
    if (part_ == Part::kText) return AddContent({&c, 1}, out);
    if (part_ == Part::kAfter) {
      if (c != '{') return;  // ";", spaces, or what is dropped
      part_ = Part::kCall;
      begun_ = false;
      scanner_ = {};
      raw_.clear();
    }
    raw_ += c;
    if (part_ == Part::kBefore) Begin(c, out);
    if (part_ == Part::kCall) InCall(c, out);
  }

  // Spaces, and perhaps the tag.
  void Begin(char c, AnswerDelta* out) {
    if (c == '{' && (tag_.empty() || tag_ == kPythonTag)) {
      part_ = Part::kCall;
      return;
    }
    const bool complete = tag_ == kPythonTag;
    if (IsJsonSpace(c) && (tag_.empty() || complete)) return;
    tag_ += c;
    if (!complete && kPythonTag.starts_with(tag_)) return;
    GiveUp(out);
  }

  void InCall(char c, AnswerDelta* out) {
    const ToolCallScanner::State state = scanner_.Next(c);
    if (state != ToolCallScanner::State::kBad && scanner_.is_call()) {
      if (!std::exchange(begun_, true)) BeginCall(scanner_.name(), out);
      AddArguments(scanner_.TakeArguments(), out);
    }
    if (state == ToolCallScanner::State::kDone) part_ = Part::kAfter;
    if (state == ToolCallScanner::State::kBad) GiveUp(out);
  }

  void GiveUp(AnswerDelta* out) {
    part_ = called() ? Part::kAfter : Part::kText;
    AddContent(raw_, out);
    raw_.clear();
  }

  Part part_ = Part::kBefore;
  ToolCallScanner scanner_;
  std::string tag_;     // as far as it has come
  std::string raw_;     // from the start, or from the object's brace
  bool begun_ = false;  // the call has been told
};

}  // namespace

std::unique_ptr<ToolParser> MakeLlama3Parser(uint64_t salt) {
  return std::make_unique<Llama3Parser>(salt);
}

}  // namespace kvcake
