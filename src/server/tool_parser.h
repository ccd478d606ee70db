// Calls of tools in the text of an answer, found as the text comes. The pieces say the same however
// the text is split.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace kvcake {

// A call, or what is new of one.
struct ToolCallDelta {
  int index = 0;        // of the call, in the answer
  std::string id = {};  // of a call that begins here; else empty, as is the name
  std::string name = {};
  std::string arguments = {};  // JSON, as the model has written it; cut short where the answer is
};

// What a piece of text means.
struct AnswerDelta {
  std::string content = {};
  std::string reasoning = {};
  std::vector<ToolCallDelta> calls = {};  // in order

  bool empty() const { return content.empty() && reasoning.empty() && calls.empty(); }
};

// The calls of one answer. Text before the first call is content; what stands between calls and
// after the last is dropped, as by vLLM. What begins like a call and has no name and arguments is
// content, too, unless a call precedes it.
class ToolParser {
 public:
  // Ids of calls are made of `salt`.
  explicit ToolParser(uint64_t salt) : salt_(salt) {}
  virtual ~ToolParser() = default;
  ToolParser(const ToolParser&) = delete;
  ToolParser& operator=(const ToolParser&) = delete;

  void Append(std::string_view text, AnswerDelta* out) {
    for (const char c : text) Next(c, out);
  }
  // Nothing more comes.
  virtual void Finish(AnswerDelta* out) = 0;
  bool called() const { return calls_ > 0; }

 protected:
  virtual void Next(char c, AnswerDelta* out) = 0;
  virtual std::string MakeId(uint64_t hash) const;

  // The next call begins.
  void BeginCall(std::string name, AnswerDelta* out);
  // Adds to the call that began last.
  void AddArguments(std::string_view arguments, AnswerDelta* out) const;
  // Adds to the content, unless a call has been made.
  void AddContent(std::string_view text, AnswerDelta* out) const;

 private:
  const uint64_t salt_;
  int calls_ = 0;
};

// Finds a text in a stream.
class MarkerFinder {
 public:
  explicit MarkerFinder(std::string_view marker) : marker_(marker) {}

  // True when this character completes the marker. Else *passed gets what is certainly none of it.
  bool Next(char c, std::string* passed);
  // What could have become the marker.
  std::string TakeHeld();

 private:
  const std::string_view marker_;
  std::string held_;
};

// vLLM's names: llama3_json, hermes, mistral.
bool IsToolParser(std::string_view name);
// The family's markers are special tokens, which the text must have.
bool ReadsSpecialTokens(std::string_view name);
// Null: there is none of this name.
std::unique_ptr<ToolParser> MakeToolParser(std::string_view name, uint64_t salt);

// One for each family; MakeToolParser's.
std::unique_ptr<ToolParser> MakeHermesParser(uint64_t salt);
std::unique_ptr<ToolParser> MakeLlama3Parser(uint64_t salt);
std::unique_ptr<ToolParser> MakeMistralParser(uint64_t salt);

}  // namespace kvcake
