// What clients ask for, as OpenAI's API and vLLM's extensions of it spell it. Fields that kvcake
// knows and does not honour are refused (unsupported_fields.h); unknown ones are ignored, but in
// its own "kvcake" object.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "cake/report.h"
#include "engine/sampler.h"
#include "server/api_error.h"
#include "server/chat_prompt.h"

namespace kvcake {

// Text, token ids, or messages for the model's chat template.
using Prompt = std::variant<std::string, std::vector<int32_t>, ChatPrompt>;

// The field that a request has it in.
const char* FieldOf(const Prompt& prompt);

// The "kvcake" field.
struct KvcakeFields {
  bool report = false;  // add the RestoreReport to the answer
  bool store = true;    // keep new chunks
  Policy policy = Policy::kCake;
};

enum class ToolChoice { kNone, kAuto };

struct GenerateRequest {
  std::string model;                // empty: the one that is served
  std::vector<Prompt> prompts;      // a chat has one
  int n = 1;                        // answers to each prompt
  std::optional<bool> add_special;  // what the tokenizer adds; absent: yes, for text
  std::optional<int> max_tokens;
  std::string max_tokens_field;  // that asks for them; empty: a default, that yields to less room
  int min_tokens = 0;
  SamplingParams sampling;
  std::optional<uint64_t> seed;
  std::vector<std::string> stops;
  std::vector<int32_t> stop_tokens;
  bool logprobs = false;
  int top_logprobs = 0;
  bool stream = false;
  bool include_usage = false;
  bool continuous_usage = false;  // in every chunk
  bool ignore_eos = false;
  bool echo = false;
  bool skip_special = true;
  ToolChoice tool_choice = ToolChoice::kNone;
  bool parallel_tool_calls = true;
  bool include_reasoning = true;
  std::string cache_salt;
  KvcakeFields kvcake;
};

struct TokenizeRequest {
  std::string model;
  Prompt prompt;
  std::optional<bool> add_special;
};

struct DetokenizeRequest {
  std::string model;
  std::vector<int32_t> tokens;
};

// How much of everything a request may hold, its size apart.
struct RequestLimits {
  int depth_max = 32;
  uint64_t values_max = 4ull << 20;
  ChatLimits chat = {};
  size_t stops_max = 16;
  size_t stop_bytes_max = 1024;
  size_t ids_max = 1 << 20;  // of tokens: in, and out of /tokenize
  // Answers to one request: its prompts, n times; and what says so many, for messages.
  int choices_max = 128;
  std::string choices_flag = "--choices-max";
  size_t biases_max = 1024;
  int top_logprobs_max = 20;
  // Log probabilities in one answer: of all its tokens, each with its alternatives.
  int64_t scores_max = 4'000'000;
};

// What counts where a request says nothing.
struct RequestDefaults {
  SamplingParams sampling = {.temperature = 1};
  std::optional<int> max_tokens = {};  // no answer is longer, whatever is asked for
};

struct RequestRules {
  RequestLimits limits = {};
  RequestDefaults defaults = {};
};

// A request's body as it came, and read.
struct RequestBody {
  std::string_view text;  // borrowed
  nlohmann::json json;
};

// The body of a POST. Not JSON, nested too deeply, with too many values: 400.
ApiResult<RequestBody> ParseBody(std::string_view body, const RequestLimits& limits = {});

ApiResult<GenerateRequest> ParseCompletion(const RequestBody& body, const RequestRules& rules = {});
ApiResult<GenerateRequest> ParseChat(const RequestBody& body, const RequestRules& rules = {});
// One prompt as in a completion, or a chat's fields: what /tokenize takes.
ApiResult<TokenizeRequest> ParseTokenize(const RequestBody& body, const RequestLimits& limits = {});
ApiResult<DetokenizeRequest> ParseDetokenize(const RequestBody& body,
                                             const RequestLimits& limits = {});

}  // namespace kvcake
