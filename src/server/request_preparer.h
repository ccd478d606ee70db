// From the bodies of requests to what the engine is asked: parsed, checked, written out by the
// chat's template, and tokenized.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/runtime.h"
#include "server/api_error.h"
#include "server/chat_template.h"
#include "server/openai_request.h"

namespace kvcake {

// A request that is ready for the engine.
struct PreparedRequest {
  GenerateRequest asked = {};
  std::vector<Request> requests = {};          // n in a row for each prompt
  std::vector<std::string> prompt_texts = {};  // of each prompt; of ids: with echo
  bool scores_only = false;                    // the prompt is all of the answer
};

// Immutable; every method may be called from any thread.
class RequestPreparer {
 public:
  enum class Ask { kCompletion, kChat, kWarm };
  struct Options {
    std::vector<std::string> model_names = {};  // at least one; the first is the one in answers
    int model_len_max = 0;                      // tokens of prompt and answer
    RequestRules rules = {};
    bool auto_tool_choice = false;  // answers to requests with tools are parsed, by
    std::string tool_parser = {};   // the one of this name
  };
  // Borrows the runtime. `chat` is the model's template or why there is none.
  RequestPreparer(Runtime& runtime, Result<ChatTemplate> chat, Options options)
      : runtime_(runtime), chat_(std::move(chat)), options_(std::move(options)) {}

  ApiResult<PreparedRequest> Prepare(const std::string& body, Ask ask,
                                     const std::string& tenant) const;
  // The answers of /tokenize and /detokenize.
  ApiResult<std::string> TokenizeBody(const std::string& body) const;
  ApiResult<std::string> DetokenizeBody(const std::string& body) const;
  // Whether there is a model of this name; empty is the one that is served.
  std::optional<ApiError> CheckModel(const std::string& model) const;
  const Options& options() const { return options_; }

 private:
  ApiResult<GenerateRequest> ParseAsked(const std::string& body, Ask ask) const;
  std::optional<ApiError> CheckIds(const char* field, std::span<const int32_t> ids) const;
  // At most `tokens_max` of them: a text that has more for certain is not even tokenized.
  ApiResult<std::vector<int32_t>> Encode(const Prompt& prompt, std::optional<bool> add_special,
                                         size_t tokens_max, std::string* text) const;
  ApiResult<int> AnswerTokens(const GenerateRequest& asked, int prompt_tokens) const;
  Request RequestOf(const GenerateRequest& of, const std::string& tenant) const;

  Runtime& runtime_;
  const Result<ChatTemplate> chat_;
  const Options options_;
};

}  // namespace kvcake
