// Mistral: [TOOL_CALLS] [{"name": ..., "arguments": {...}}, ...], or in newer models
// [TOOL_CALLS]name{...}, perhaps with [CALL_ID] and [ARGS] before the arguments, for each call.
#include <algorithm>
#include <utility>

#include "server/tool_call_scanner.h"
#include "server/tool_parser.h"

namespace kvcake {
namespace {

constexpr std::string_view kMistralMarker = "[TOOL_CALLS]";
constexpr std::string_view kCallId = "[CALL_ID]", kArgs = "[ARGS]";
constexpr size_t kHeadBytesMax = 512;  // of a name and what stands before the arguments

// Clients name their tools as they like; what only sentences have tells a name from one.
bool IsNameCharacter(char c) {
  constexpr std::string_view kOfSentences = R"(,;!?"'`()<>[]{})";
  return static_cast<unsigned char>(c) > ' ' && kOfSentences.find(c) == std::string_view::npos;
}

// Whether a text is the beginning of name, name[ARGS] or name[CALL_ID]id[ARGS].
bool MayBeHead(std::string_view text) {
  const auto word = [&text] {  // takes one away, and spaces around it
    const auto take = [&text](auto is) {
      text.remove_prefix(std::ranges::find_if_not(text, is) - text.begin());
    };
    take(IsJsonSpace);
    take(IsNameCharacter);
    take(IsJsonSpace);
  };
  const auto tag = [&text](std::string_view whole) {
    if (!text.starts_with(whole)) return false;
    text.remove_prefix(whole.size());
    return true;
  };
  word();
  if (tag(kCallId)) word();
  if (tag(kArgs)) return std::ranges::all_of(text, IsJsonSpace);
  return kArgs.starts_with(text) || kCallId.starts_with(text);
}

class MistralParser : public ToolParser {
 public:
  using ToolParser::ToolParser;

  void Finish(AnswerDelta* out) override {
    while (part_ != Part::kText) GiveUp(out);  // which may find another marker
    AddContent(finder_.TakeHeld(), out);
  }

 private:
  enum class Part { kText, kMarked, kArray, kCall, kHead, kArguments };

  // Nine letters and digits, as Mistral's templates ask for.
  std::string MakeId(uint64_t hash) const override {
    static constexpr std::string_view kLetters =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
    std::string id;
    for (int i = 0; i < 9; ++i, hash /= kLetters.size()) id += kLetters[hash % kLetters.size()];
    return id;
  }

  void Next(char c, AnswerDelta* out) override {
    if (part_ == Part::kText) {
      std::string text;
      if (finder_.Next(c, &text)) {
        part_ = Part::kMarked;
        raw_.clear();
      }
      return AddContent(text, out);
    }
    raw_ += c;
    switch (part_) {
      case Part::kMarked:
        return Marked(c, out);
      case Part::kArray:
        return InArray(c, out);
      case Part::kCall:
        return InCall(c, out);
      case Part::kHead:
        return InHead(c, out);
      default:
        return InArguments(c, out);
    }
  }

  void Marked(char c, AnswerDelta* out) {
    if (IsJsonSpace(c)) return;
    if (c == '[') {
      part_ = Part::kArray;
    } else if (c == '{') {
      in_array_ = false;
      OpenCall(c, out);
    } else {
      part_ = Part::kHead;
      head_.clear();
      InHead(c, out);
    }
  }

  // Between the calls of an array.
  void InArray(char c, AnswerDelta* out) {
    if (IsJsonSpace(c) || c == ',') return;
    if (c == '{') {
      in_array_ = true;
      return OpenCall(c, out);
    }
    GiveUp(out);
  }

  void OpenCall(char c, AnswerDelta* out) {
    part_ = Part::kCall;
    begun_ = false;
    scanner_ = {};
    InCall(c, out);
  }

  void InCall(char c, AnswerDelta* out) {
    const ToolCallScanner::State state = scanner_.Next(c);
    if (state != ToolCallScanner::State::kBad && scanner_.is_call()) {
      if (!std::exchange(begun_, true)) BeginCall(scanner_.name(), out);
      AddArguments(scanner_.TakeArguments(), out);
    }
    if (state == ToolCallScanner::State::kDone) part_ = in_array_ ? Part::kArray : Part::kText;
    if (state == ToolCallScanner::State::kBad) GiveUp(out);
  }

  // name, name[ARGS], name[CALL_ID]id[ARGS]
  void InHead(char c, AnswerDelta* out) {
    if (c != '{') {
      head_ += c;
      if (head_.size() > kHeadBytesMax || !MayBeHead(head_)) GiveUp(out);
      return;
    }
    std::string name = head_.substr(0, head_.find('['));
    while (!name.empty() && IsJsonSpace(name.back())) name.pop_back();
    BeginCall(std::move(name), out);
    part_ = Part::kArguments;
    arguments_ = {};
    InArguments(c, out);
  }

  void InArguments(char c, AnswerDelta* out) {
    const std::string escaped = arguments_.Escaped(c);
    const JsonValueScanner::State state = arguments_.Next(c);
    if (state != JsonValueScanner::State::kBad) AddArguments(escaped, out);
    if (state != JsonValueScanner::State::kMore) part_ = Part::kText;
  }

  // What was taken for calls is content where none has come of it. The last bracket, or else the
  // last character, may begin another marker.
  void GiveUp(AnswerDelta* out) {
    part_ = Part::kText;
    std::string raw = std::exchange(raw_, {});
    const size_t bracket = raw.rfind('[');
    const bool in_marker =
        bracket != std::string::npos && kMistralMarker.starts_with(raw.substr(bracket));
    const size_t at = in_marker ? bracket : raw.size() - std::min<size_t>(raw.size(), 1);
    AddContent(kMistralMarker, out);
    AddContent(std::string_view(raw).substr(0, at), out);
    Append(std::string_view(raw).substr(at), out);
  }

  MarkerFinder finder_{kMistralMarker};
  Part part_ = Part::kText;
  ToolCallScanner scanner_;
  JsonValueScanner arguments_;
  std::string head_;       // what precedes the arguments
  std::string raw_;        // from behind the marker
  bool in_array_ = false;  // calls stand in one
  bool begun_ = false;     // the call has been told
};

}  // namespace

std::unique_ptr<ToolParser> MakeMistralParser(uint64_t salt) {
  return std::make_unique<MistralParser>(salt);
}

}  // namespace kvcake
