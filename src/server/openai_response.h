// Answers as OpenAI's API spells them, whole and as server-sent events.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "engine/request.h"
#include "model/tokenizer.h"
#include "server/api_error.h"
#include "server/completion_sum.h"
#include "server/tool_parser.h"

namespace kvcake {

// A token of the answer, or of an echoed prompt, with its logprobs.
struct TokenInfo {
  int32_t token = 0;
  std::optional<float> logprob = {};  // none of a prompt's first
  std::vector<TokenLogprob> top = {};
};

// What of that which the client named has ended an answer: a stop string or token, or nothing.
using StopReason = std::variant<std::monostate, std::string, int32_t>;

// "stop" or "length".
std::string_view OpenAiFinishReason(FinishReason reason);
// Why it ended without an answer, or with part of one.
std::optional<ApiError> FailureOf(const Completion& completion);
// Whether there is anything to count: what failed before its first token is no answer; that to a
// prompt which was only scored has none.
bool HasAnswer(const Completion& completion);
// The end of a stream that cannot go on.
std::string ErrorEvents(const ApiError& error);
// prompt_tokens, completion_tokens, total_tokens, prompt_tokens_details; of a request's SumOf.
nlohmann::ordered_json Usage(const Completion& completion);
// What the "kvcake" field of an answer holds: times, and the RestoreReport.
nlohmann::ordered_json KvcakeReport(const Completion& completion);

// Writes what is sent of one request's answers; strings are whole bodies or whole events ("data:
// ...\n\n").
class AnswerWriter {
 public:
  // One of several answers.
  struct Choice {
    AnswerDelta text = {};  // all of it
    std::vector<TokenInfo> tokens = {};
    const Completion* completion = nullptr;
    StopReason stop_reason = {};
  };
  struct Options {
    bool chat = false;
    std::string id = {};
    std::string model = {};
    int64_t created = 0;  // seconds since 1970
    bool logprobs = false;
    bool report = false;
    bool usage_in_stream = false;
    bool usage_in_chunks = false;  // and in every chunk, that of its choice so far
    int choices = 1;
  };
  // The tokenizer outlives it.
  AnswerWriter(const Tokenizer& tokenizer, Options options);

  // `sum` is SumOf their completions.
  std::string Whole(std::span<const Choice> choices, const Completion& sum);
  // What the choice's chunks say of usage, from now on.
  void Count(int choice, int prompt_tokens, int generated);
  // Says whose turn it is in a chat; empty for a completion.
  std::string FirstEvents();
  std::string Event(int choice, const AnswerDelta& text, std::span<const TokenInfo> tokens);
  // The reasons for a choice's end. `called`: it has called tools.
  std::string LastEvent(int choice, const Completion& completion, const StopReason& stop_reason,
                        bool called);
  // The usage where it was asked for, and the end of the stream.
  std::string End(const Completion& sum);

 private:
  nlohmann::ordered_json Head(bool whole) const;
  std::string WholeChoice(int index, const Choice& choice);
  nlohmann::ordered_json Logprobs(int choice, std::span<const TokenInfo> tokens);
  void AddLogprobs(int choice, std::span<const TokenInfo> tokens, std::string* text);
  nlohmann::ordered_json ChatLogprobs(std::span<const TokenInfo> tokens) const;
  nlohmann::ordered_json CompletionLogprobs(std::span<const TokenInfo> tokens, size_t* text_offset);
  nlohmann::ordered_json TopLogprobs(const TokenInfo& info) const;
  std::string TokenText(int32_t token) const;
  nlohmann::ordered_json ChunkBody(int index, nlohmann::ordered_json choice) const;

  const Tokenizer& tokenizer_;
  const Options options_;
  std::vector<size_t> text_offsets_;  // characters of each choice's tokens that were written
  std::vector<nlohmann::ordered_json> usage_so_far_;  // of each choice
};

}  // namespace kvcake
