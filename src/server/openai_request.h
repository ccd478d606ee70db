// What clients ask for, as OpenAI's API and vLLM's extensions of it spell it. Fields that kvcake
// knows and cannot honour are refused where they would change the answer; unknown ones are ignored.
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
#include "server/chat_template.h"

namespace kvcake {

// Text, token ids, or messages for the model's chat template.
using Prompt = std::variant<std::string, std::vector<int32_t>, std::vector<ChatMessage>>;

// The "kvcake" field.
struct KvcakeFields {
  bool report = false;  // add the RestoreReport to the answer
  bool store = true;    // keep new chunks
  Policy policy = Policy::kCake;
};

struct GenerateRequest {
  std::string model;  // empty: the one that is served
  Prompt prompt;
  std::optional<bool> add_special;  // what the tokenizer adds; absent: yes, for text
  std::optional<int> max_tokens;
  SamplingParams sampling;
  std::optional<uint64_t> seed;
  std::vector<std::string> stops;
  std::vector<int32_t> stop_tokens;
  bool logprobs = false;
  int top_logprobs = 0;
  bool stream = false;
  bool include_usage = false;
  bool ignore_eos = false;
  bool echo = false;
  bool skip_special = true;
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
  size_t messages_max = 4096;
  size_t stops_max = 16;
  size_t stop_bytes_max = 1024;
  size_t ids_max = 1 << 20;  // of tokens: in, and out of /tokenize
  int top_logprobs_max = 20;
};

// The body of a POST. Not JSON, nested too deeply, with too many values: 400.
ApiResult<nlohmann::json> ParseBody(std::string_view body, const RequestLimits& limits = {});

ApiResult<GenerateRequest> ParseCompletion(const nlohmann::json& body,
                                           const RequestLimits& limits = {});
ApiResult<GenerateRequest> ParseChat(const nlohmann::json& body, const RequestLimits& limits = {});
// {"prompt": ...} as in a completion, or {"messages": [...]}: what /tokenize and /cache/warm take.
ApiResult<TokenizeRequest> ParseTokenize(const nlohmann::json& body,
                                         const RequestLimits& limits = {});
ApiResult<DetokenizeRequest> ParseDetokenize(const nlohmann::json& body,
                                             const RequestLimits& limits = {});

}  // namespace kvcake
