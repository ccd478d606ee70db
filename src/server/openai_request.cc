#include "server/openai_request.h"

#include <fmt/core.h>

#include <limits>

#include "base/json_file.h"
#include "server/request_fields.h"

namespace kvcake {
namespace {

using nlohmann::json;

constexpr size_t kNameBytesMax = 4096;
constexpr int kIntMax = std::numeric_limits<int>::max();
constexpr double kDoubleMax = std::numeric_limits<double>::max();

// Fields that kvcake does not honour, with the one value (besides null, false, and what is empty)
// that asks for nothing.
struct Unsupported {
  const char* name;
  const char* neutral;  // JSON; null: there is none
};

constexpr Unsupported kUnsupported[] = {
    {"n", "1"},
    {"best_of", "1"},
    {"use_beam_search", nullptr},
    {"logit_bias", nullptr},
    {"logits_processors", nullptr},
    {"min_tokens", "0"},
    {"bad_words", nullptr},
    {"allowed_token_ids", nullptr},
    {"truncate_prompt_tokens", nullptr},
    {"prompt_logprobs", nullptr},
    {"prompt_embeds", nullptr},
    {"length_penalty", "1.0"},
    {"response_format", R"({"type":"text"})"},
    {"structured_outputs", nullptr},
    {"guided_json", nullptr},
    {"guided_regex", nullptr},
    {"guided_choice", nullptr},
    {"guided_grammar", nullptr},
    {"guided_decoding_backend", nullptr},
    {"structural_tag", nullptr},
    {"include_stop_str_in_output", nullptr},
};
constexpr Unsupported kUnsupportedCompletion[] = {{"suffix", nullptr}};
constexpr Unsupported kUnsupportedChat[] = {
    {"tools", nullptr},
    {"tool_choice", R"("none")"},
    {"functions", nullptr},
    {"function_call", R"("none")"},
    {"audio", nullptr},
    {"modalities", R"(["text"])"},
    {"prediction", nullptr},
    {"web_search_options", nullptr},
    {"reasoning_effort", nullptr},
    {"documents", nullptr},
    {"chat_template", nullptr},
    {"chat_template_kwargs", nullptr},
    {"continue_final_message", nullptr},
    {"echo", nullptr},
};

bool AsksForNothing(const json& value, const char* neutral) {
  if (value.is_null() || value == json(false)) return true;
  if ((value.is_structured() || value.is_string()) && value.size() == 0) return true;
  if (value == json("")) return true;
  return neutral != nullptr && value == json::parse(neutral);
}

template <size_t N>
void Refuse(const Unsupported (&unsupported)[N], RequestFields* fields) {
  for (const Unsupported& field : unsupported) {
    if (AsksForNothing((*fields)[field.name].value(), field.neutral)) continue;
    fields->Fail(
        {.message = fmt::format("{} is not supported by this server{}", field.name,
                                field.neutral == nullptr
                                    ? ": leave it out"
                                    : fmt::format(" with another value than {}", field.neutral)),
         .param = field.name,
         .code = "unsupported_parameter"});
  }
}

void ReadSampling(RequestFields* fields, GenerateRequest* request) {
  SamplingParams& sampling = request->sampling;
  sampling.temperature = 1;
  fields->Read("temperature", 0, kDoubleMax, &sampling.temperature);
  fields->Read("top_p", 0, 1, &sampling.top_p, /*above=*/true);
  fields->Read("min_p", 0, 1, &sampling.min_p);
  fields->Read("top_k", -1, kIntMax, &sampling.top_k);
  if (sampling.top_k == -1) sampling.top_k = 0;  // as vLLM says "all"
  fields->Read("repetition_penalty", 0, kDoubleMax, &sampling.repetition_penalty, /*above=*/true);
  fields->Read("presence_penalty", -2, 2, &sampling.presence_penalty);
  fields->Read("frequency_penalty", -2, 2, &sampling.frequency_penalty);
  fields->Read("seed", &request->seed);
}

void ReadKvcake(RequestFields* fields, KvcakeFields* kvcake) {
  const JsonField value = (*fields)["kvcake"];
  if (value.null()) return;
  RequestFields own(value);
  own.Read("report", &kvcake->report);
  own.Read("store", &kvcake->store);
  std::string policy(PolicyName(kvcake->policy));
  own.Read("policy", &policy, kNameBytesMax);
  if (const auto known = PolicyFromName(policy)) {
    kvcake->policy = *known;
  } else {
    own.Fail("policy", "must be cake, compute, load or cake-published");
  }
  if (own.error()) fields->Fail(*own.error());
}

// What both kinds of requests have.
void ReadCommon(RequestFields* fields, const RequestLimits& limits, GenerateRequest* request) {
  Refuse(kUnsupported, fields);
  fields->Read("model", &request->model, kNameBytesMax);
  ReadSampling(fields, request);
  fields->Read("stop", limits.stops_max, limits.stop_bytes_max, &request->stops);
  fields->Read("stop_token_ids", limits.stops_max, &request->stop_tokens);
  fields->Read("stream", &request->stream);
  const JsonField stream_options = (*fields)["stream_options"];
  if (!stream_options.null()) {
    RequestFields options(stream_options);
    options.Read("include_usage", &request->include_usage);
    if (options.error()) fields->Fail(*options.error());
    if (!request->stream) fields->Fail("stream_options", "is for requests with stream: true");
  }
  fields->Read("ignore_eos", &request->ignore_eos);
  fields->Read("skip_special_tokens", &request->skip_special);
  bool add_special = false;
  if (!(*fields)["add_special_tokens"].null()) {
    fields->Read("add_special_tokens", &add_special);
    request->add_special = add_special;
  }
  fields->Read("cache_salt", &request->cache_salt, kNameBytesMax);
  ReadKvcake(fields, &request->kvcake);
}

bool IsTokenIds(const json& value) {
  return value.is_array() && !value.empty() && value[0].is_number();
}

// A text, token ids, or an array with one of these.
void ReadPrompt(RequestFields* fields, const RequestLimits& limits, Prompt* out) {
  const JsonField whole = (*fields)["prompt"];
  const json& given = whole.value();
  const bool list = given.is_array() && !given.empty() && !IsTokenIds(given);
  if (list && given.size() > 1) {
    return fields->Fail(
        "prompt", fmt::format("has {} prompts: this server takes one a request", given.size()));
  }
  const JsonField prompt = list ? whole[0] : whole;
  if (prompt.value().is_string()) {
    *out = prompt.value().get<std::string>();
  } else if (IsTokenIds(prompt.value())) {
    std::vector<int32_t> tokens;
    fields->Read("prompt", prompt, limits.ids_max, &tokens);
    *out = std::move(tokens);
  } else {
    fields->Fail("prompt", prompt.value().empty() ? "is missing or empty"
                                                  : "must be a text or an array of token ids");
  }
}

// A text, or an array of parts that are texts.
void ReadContent(RequestFields* message, std::string* out) {
  const JsonField parts = (*message)["content"];
  const json& content = parts.value();
  if (content.is_string()) {
    *out = content.get<std::string>();
    return;
  }
  if (!content.is_array()) {
    return message->Fail("content", "must be a text or an array of parts with text");
  }
  for (size_t i = 0; i < content.size(); ++i) {
    RequestFields part(parts[i]);
    std::string type, text;
    part.Read("type", &type, kNameBytesMax);
    if (type != "text") part.Fail("type", "must be \"text\": this server takes no other parts");
    if (!part["text"].value().is_string()) part.Fail("text", "must be a text");
    part.Read("text", &text, std::string::npos);
    if (part.error()) return message->Fail(*part.error());
    if (i > 0) *out += '\n';  // as vLLM joins them
    *out += text;
  }
}

void ReadMessages(RequestFields* fields, const RequestLimits& limits, Prompt* out) {
  const JsonField list = (*fields)["messages"];
  const json& messages = list.value();
  if (!messages.is_array() || messages.empty()) {
    return fields->Fail("messages", "must be an array with at least one message");
  }
  if (messages.size() > limits.messages_max) {
    return fields->Fail("messages", fmt::format("has {} messages, more than the limit of {}",
                                                messages.size(), limits.messages_max));
  }
  std::vector<ChatMessage> read;
  for (size_t i = 0; i < messages.size(); ++i) {
    RequestFields message(list[i]);
    ChatMessage next;
    message.Read("role", &next.role, kNameBytesMax);
    if (next.role == "developer") next.role = "system";  // OpenAI's newer name
    if (next.role != "system" && next.role != "user" && next.role != "assistant") {
      message.Fail("role", "must be system, developer, user or assistant");
    }
    for (const char* unsupported : {"tool_calls", "function_call", "audio"}) {
      if (!AsksForNothing(message[unsupported].value(), nullptr)) {
        message.Fail(unsupported, "is not supported by this server");
      }
    }
    if (!message.error()) ReadContent(&message, &next.content);
    if (message.error()) return fields->Fail(*message.error());
    read.push_back(std::move(next));
  }
  *out = std::move(read);
}

template <typename T>
ApiResult<T> Checked(const RequestFields& fields, T value) {
  if (fields.error()) return tl::unexpected<ApiError>(*fields.error());
  return value;
}

}  // namespace

ApiResult<json> ParseBody(std::string_view body, const RequestLimits& limits) {
  auto parsed = ParseJson(body, "the request's body",
                          {.max_bytes = std::numeric_limits<uint64_t>::max(),
                           .max_values = limits.values_max,
                           .max_depth = limits.depth_max});
  if (!parsed) {
    return tl::unexpected<ApiError>(ApiError{.message = std::move(parsed.error().message)});
  }
  return std::move(*parsed);
}

ApiResult<GenerateRequest> ParseCompletion(const json& body, const RequestLimits& limits) {
  GenerateRequest request;
  RequestFields fields(JsonField(body, ""));
  ReadPrompt(&fields, limits, &request.prompt);
  Refuse(kUnsupportedCompletion, &fields);
  ReadCommon(&fields, limits, &request);
  fields.Read("echo", &request.echo);
  // With echo, 0 asks for the prompt and its logprobs alone.
  fields.Read("max_tokens", request.echo ? 0 : 1, kIntMax, &request.max_tokens);
  if (!request.max_tokens) request.max_tokens = 16;  // OpenAI's default
  std::optional<int> logprobs;
  fields.Read("logprobs", 0, limits.top_logprobs_max, &logprobs);
  request.logprobs = logprobs.has_value();
  request.top_logprobs = logprobs.value_or(0);
  return Checked(fields, std::move(request));
}

ApiResult<GenerateRequest> ParseChat(const json& body, const RequestLimits& limits) {
  GenerateRequest request;
  RequestFields fields(JsonField(body, ""));
  ReadMessages(&fields, limits, &request.prompt);
  Refuse(kUnsupportedChat, &fields);
  bool add_generation_prompt = true;
  fields.Read("add_generation_prompt", &add_generation_prompt);
  if (!add_generation_prompt) {
    fields.Fail("add_generation_prompt", "must be true: false is not supported by this server");
  }
  ReadCommon(&fields, limits, &request);
  fields.Read("max_tokens", 1, kIntMax, &request.max_tokens);
  fields.Read("max_completion_tokens", 1, kIntMax, &request.max_tokens);
  fields.Read("logprobs", &request.logprobs);
  fields.Read("top_logprobs", 0, limits.top_logprobs_max, &request.top_logprobs);
  if (request.top_logprobs > 0 && !request.logprobs) {
    fields.Fail("top_logprobs", "needs logprobs: true");
  }
  return Checked(fields, std::move(request));
}

ApiResult<TokenizeRequest> ParseTokenize(const json& body, const RequestLimits& limits) {
  TokenizeRequest request;
  RequestFields fields(JsonField(body, ""));
  fields.Read("model", &request.model, kNameBytesMax);
  if (!fields["messages"].null()) {
    ReadMessages(&fields, limits, &request.prompt);
  } else {
    ReadPrompt(&fields, limits, &request.prompt);
  }
  if (!fields["add_special_tokens"].null()) {
    bool add_special = false;
    fields.Read("add_special_tokens", &add_special);
    request.add_special = add_special;
  }
  return Checked(fields, std::move(request));
}

ApiResult<DetokenizeRequest> ParseDetokenize(const json& body, const RequestLimits& limits) {
  DetokenizeRequest request;
  RequestFields fields(JsonField(body, ""));
  fields.Read("model", &request.model, kNameBytesMax);
  fields.Read("tokens", limits.ids_max, &request.tokens);
  if (fields["tokens"].null()) fields.Fail("tokens", "is missing");
  return Checked(fields, std::move(request));
}

}  // namespace kvcake
