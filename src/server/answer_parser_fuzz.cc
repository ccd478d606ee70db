// Any text as an answer: the same thoughts, content and calls whole and in pieces. The first byte
// says which parsers, the second how long the pieces are.
#include <algorithm>
#include <cstdint>
#include <iterator>

#include "base/check.h"
#include "server/answer_parser.h"

namespace {

struct Sum {
  std::string content, reasoning, calls;
  bool operator==(const Sum&) const = default;
};

Sum Parse(const kvcake::AnswerParser::Options& options, std::string_view text, size_t piece) {
  kvcake::AnswerParser parser(options);
  Sum sum;
  int begun = 0;
  do {
    const std::string_view next = text.substr(0, piece);
    text.remove_prefix(next.size());
    const kvcake::AnswerDelta delta = parser.Take(next, text.empty());
    sum.content += delta.content;
    sum.reasoning += delta.reasoning;
    for (const kvcake::ToolCallDelta& call : delta.calls) {
      if (!call.id.empty()) {
        CHECK(call.index == begun && !call.name.empty());
        ++begun;
        sum.calls += "\n" + call.id + " " + call.name + " ";
      }
      CHECK(call.index == begun - 1);
      sum.calls += call.arguments;
    }
  } while (!text.empty());
  CHECK(parser.called() == (begun > 0));
  return sum;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static constexpr const char* kTools[] = {"hermes", "llama3_json", "mistral", ""};
  static constexpr const char* kReasoning[] = {"", "deepseek_r1", "qwen3"};
  if (size < 2) return 0;
  const kvcake::AnswerParser::Options options{
      .tool_parser = kTools[data[0] % std::size(kTools)],
      .reasoning_parser = kReasoning[data[0] / std::size(kTools) % std::size(kReasoning)]};
  const std::string_view text(reinterpret_cast<const char*>(data) + 2, size - 2);
  const Sum whole = Parse(options, text, std::max<size_t>(text.size(), 1));
  CHECK(Parse(options, text, data[1] % 32 + 1) == whole);
  CHECK(whole.content.size() + whole.reasoning.size() <= text.size());
  const bool plain = options.reasoning_parser.empty() && whole.calls.empty();
  CHECK(!plain || whole.content == text);
  return 0;
}
