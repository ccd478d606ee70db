#include "server/unsupported_fields.h"

#include <fmt/core.h>

#include <span>

namespace kvcake {
namespace {

using nlohmann::json;

struct Unsupported {
  const char* name;
  const char* neutral = nullptr;  // JSON: another value that asks for nothing; null: there is none
  const char* remedy = nullptr;   // what to do instead; null: leave it out
};

// Fields of both endpoints.
constexpr Unsupported kCommon[] = {
    {"best_of", "1"},
    {"use_beam_search"},
    {"length_penalty", "1.0"},
    {"logits_processors"},
    {"bad_words"},
    {"allowed_token_ids"},
    {"include_stop_str_in_output"},
    {"spaces_between_special_tokens", "true"},
    {"truncate_prompt_tokens"},
    {"prompt_logprobs"},
    {"logprob_token_ids"},
    {"prompt_embeds"},
    {"response_format", R"({"type":"text"})"},
    {"structured_outputs"},
    {"structural_tag"},
    {"guided_json"},
    {"guided_regex"},
    {"guided_choice"},
    {"guided_grammar"},
    {"guided_decoding_backend"},
    {"guided_whitespace_pattern"},
    {"return_tokens_as_token_ids"},
    {"return_token_ids"},
    {"return_prompt_text"},
    {"priority", "0"},
    {"request_id", nullptr, "send X-Request-Id instead"},
    {"kv_transfer_params"},
    {"ec_transfer_params"},
    {"vllm_xargs"},
    {"repetition_detection"},
    {"thinking_token_budget", "-1"},
    {"watermarking"},
};
constexpr Unsupported kCompletion[] = {{"suffix"}};
constexpr Unsupported kChat[] = {
    {"functions", nullptr, "send tools instead"},
    {"function_call", R"("none")", "send tool_choice instead"},
    {"audio"},
    {"modalities", R"(["text"])"},
    {"prediction"},
    {"web_search_options"},
    {"verbosity"},
    {"store"},
    {"chat_template", nullptr, "start the server with --chat-template FILE"},
    {"media_io_kwargs"},
    {"mm_processor_kwargs"},
    {"echo"},
};

constexpr Unsupported kTokenize[] = {
    {"return_token_strs", nullptr, "ask /detokenize for the text of ids"},
    {"chat_template", nullptr, "start the server with --chat-template FILE"},
    {"mm_processor_kwargs"},
};

void Refuse(std::span<const Unsupported> table, RequestFields* fields) {
  for (const Unsupported& field : table) {
    const json& value = (*fields)[field.name].value();
    if (AsksForNothing(value)) continue;
    if (field.neutral != nullptr && value == json::parse(field.neutral)) continue;
    std::string message = fmt::format("{} is not supported by this server", field.name);
    if (field.neutral != nullptr) {
      message += fmt::format(" with another value than {}", field.neutral);
    }
    if (field.remedy != nullptr) {
      message += fmt::format(": {}", field.remedy);
    } else if (field.neutral == nullptr) {
      message += ": leave it out";
    }
    fields->Fail(
        {.message = std::move(message), .param = field.name, .code = "unsupported_parameter"});
  }
}

}  // namespace

bool AsksForNothing(const json& value) {
  if (value.is_null() || value == json(false)) return true;
  if (value.is_string()) return value.get_ref<const std::string&>().empty();
  return value.is_structured() && value.empty();
}

void RefuseUnsupported(Endpoint endpoint, RequestFields* fields) {
  if (endpoint == Endpoint::kTokenize) return Refuse(kTokenize, fields);
  Refuse(endpoint == Endpoint::kChat ? std::span<const Unsupported>(kChat) : kCompletion, fields);
  Refuse(kCommon, fields);
}

}  // namespace kvcake
