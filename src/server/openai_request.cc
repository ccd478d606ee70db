#include "server/openai_request.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <limits>

#include "base/json_file.h"
#include "server/request_fields.h"
#include "server/unsupported_fields.h"

namespace kvcake {
namespace {

using nlohmann::json;

constexpr size_t kNameBytesMax = 4096;
constexpr int kIntMax = std::numeric_limits<int>::max();
constexpr double kBiasMax = 100;
constexpr double kDoubleMax = std::numeric_limits<double>::max();

// {"TOKEN ID": BIAS}
void ReadBiases(RequestFields* fields, const RequestLimits& limits, SamplingParams* sampling) {
  const JsonField whole = (*fields)["logit_bias"];
  if (whole.null()) return;
  const json& biases = whole.value();
  if (!biases.is_object()) {
    return fields->Fail("logit_bias", "must be an object with a bias for each token id");
  }
  if (biases.size() > limits.biases_max) {
    return fields->Fail("logit_bias", fmt::format("has {} biases, more than the limit of {}",
                                                  biases.size(), limits.biases_max));
  }
  RequestFields own(whole);
  for (const auto& [name, value] : biases.items()) {
    int32_t token = 0;
    const char* const end = name.data() + name.size();
    const auto read = std::from_chars(name.data(), end, token);
    if (read.ec != std::errc() || read.ptr != end || token < 0) {
      own.Fail(name, "is no token id");
      break;
    }
    double bias = 0;
    own.Read(name, -kBiasMax, kBiasMax, &bias);
    sampling->logit_bias.emplace_back(token, static_cast<float>(bias));
  }
  if (own.error()) fields->Fail(*own.error());
}

void ReadSampling(RequestFields* fields, const RequestLimits& limits, GenerateRequest* request) {
  SamplingParams& sampling = request->sampling;
  fields->Read("temperature", 0, kDoubleMax, &sampling.temperature);
  fields->Read("top_p", 0, 1, &sampling.top_p, /*above=*/true);
  fields->Read("min_p", 0, 1, &sampling.min_p);
  fields->Read("top_k", -1, kIntMax, &sampling.top_k);
  if (sampling.top_k == -1) sampling.top_k = 0;  // as vLLM says "all"
  fields->Read("repetition_penalty", 0, kDoubleMax, &sampling.repetition_penalty, /*above=*/true);
  fields->Read("presence_penalty", -2, 2, &sampling.presence_penalty);
  fields->Read("frequency_penalty", -2, 2, &sampling.frequency_penalty);
  fields->Read("seed", &request->seed);
  // "Any", as vLLM has it. To the parser the largest unsigned number is equal to it.
  const json& seed = (*fields)["seed"].value();
  if (seed == -1 && !seed.is_number_unsigned()) request->seed.reset();
  ReadBiases(fields, limits, &sampling);
}

// So many prompts, n answers to each.
void ReadN(RequestFields* fields, const RequestLimits& limits, GenerateRequest* request) {
  fields->Read("n", 1, kIntMax, &request->n);
  const auto prompts = static_cast<int64_t>(request->prompts.size());
  if (prompts * request->n <= limits.choices_max) return;
  fields->Fail(request->n > 1 ? "n" : "prompt",
               fmt::format("asks for {} answers, more than the limit of {} a request ({})",
                           prompts * request->n, limits.choices_max, limits.choices_flag));
}

void ReadKvcake(RequestFields* fields, KvcakeFields* kvcake) {
  const JsonField value = (*fields)["kvcake"];
  if (value.null()) return;
  RequestFields own(value);
  // Other servers have no such object: what is not known here is a slip, not theirs.
  for (const auto& [name, member] : value.value().items()) {
    if (name == "report" || name == "store" || name == "policy") continue;
    own.Fail(name, "is not known: it must be report, store or policy");
  }
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
void ReadCommon(RequestFields* fields, const RequestRules& rules, GenerateRequest* request) {
  const RequestLimits& limits = rules.limits;
  request->sampling = rules.defaults.sampling;
  fields->Read("model", &request->model, kNameBytesMax);
  ReadSampling(fields, limits, request);
  ReadN(fields, limits, request);
  fields->Read("min_tokens", 0, kIntMax, &request->min_tokens);
  fields->Read("stop", limits.stops_max, limits.stop_bytes_max, &request->stops);
  fields->Read("stop_token_ids", limits.stops_max, &request->stop_tokens);
  fields->Read("stream", &request->stream);
  const JsonField stream_options = (*fields)["stream_options"];
  if (!stream_options.null()) {
    RequestFields options(stream_options);
    options.Read("include_usage", &request->include_usage);
    options.Read("continuous_usage_stats", &request->continuous_usage);
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

// A text or token ids.
std::optional<Prompt> ReadOnePrompt(RequestFields* fields, const RequestLimits& limits,
                                    const JsonField& given) {
  if (given.value().is_string()) return given.value().get<std::string>();
  if (!IsTokenIds(given.value())) {
    fields->Fail(
        {.message = fmt::format("{} {}", given.path(),
                                given.value().empty() ? "is missing or empty"
                                                      : "must be a text or an array of token ids"),
         .param = "prompt"});
    return std::nullopt;
  }
  std::vector<int32_t> tokens;
  fields->Read("prompt", given, limits.ids_max, &tokens);
  return tokens;
}

// A text, token ids, or an array of these.
void ReadPrompts(RequestFields* fields, const RequestLimits& limits, std::vector<Prompt>* out) {
  const JsonField whole = (*fields)["prompt"];
  const json& given = whole.value();
  const bool list = given.is_array() && !given.empty() && !IsTokenIds(given);
  const size_t count = list ? given.size() : 1;
  if (count > static_cast<size_t>(limits.choices_max)) {
    return fields->Fail("prompt",
                        fmt::format("has {} prompts, more than the limit of {} answers a request "
                                    "({})",
                                    count, limits.choices_max, limits.choices_flag));
  }
  size_t ids = 0;
  for (size_t i = 0; i < count; ++i) {
    auto prompt = ReadOnePrompt(fields, limits, list ? whole[i] : whole);
    if (!prompt) return;
    if (const auto* tokens = std::get_if<std::vector<int32_t>>(&*prompt)) ids += tokens->size();
    out->push_back(std::move(*prompt));
  }
  if (ids > limits.ids_max) {
    fields->Fail("prompt",
                 fmt::format("has {} ids in all, more than the limit of {}", ids, limits.ids_max));
  }
}

// What the server does about an answer that calls tools.
void ReadToolChoice(RequestFields* fields, const ChatPrompt& prompt, GenerateRequest* request) {
  fields->Read("parallel_tool_calls", &request->parallel_tool_calls);
  const JsonField field = (*fields)["tool_choice"];
  const bool tools = !prompt.tools.is_null();
  if (field.null()) {
    if (tools) request->tool_choice = ToolChoice::kAuto;
    return;
  }
  const json& choice = field.value();
  if (choice == "none") return;
  if (choice == "auto") {
    if (!tools && (*fields)["tools"].value().is_array()) return;  // there are none to call
    if (!tools) return fields->Fail("tool_choice", "needs tools");
    request->tool_choice = ToolChoice::kAuto;
    return;
  }
  if (choice == "required" || choice.is_object()) {
    return fields->Fail(
        {.message = fmt::format("tool_choice {} is not supported by this server, "
                                "which constrains no answers: use \"auto\"",
                                choice.is_object() ? "with a named tool" : "\"required\""),
         .param = "tool_choice",
         .code = "unsupported_parameter"});
  }
  fields->Fail("tool_choice", "must be \"auto\" or \"none\"");
}

void CheckMinTokens(RequestFields* fields, const GenerateRequest& request) {
  if (request.max_tokens && request.min_tokens > *request.max_tokens) {
    fields->Fail("min_tokens", fmt::format("is {}, more than max_tokens of {}", request.min_tokens,
                                           *request.max_tokens));
  }
}

void LimitMaxTokens(const RequestDefaults& defaults, GenerateRequest* request) {
  if (!defaults.max_tokens) return;
  request->max_tokens =
      std::min(request->max_tokens.value_or(*defaults.max_tokens), *defaults.max_tokens);
}

template <typename T>
ApiResult<T> Checked(const RequestFields& fields, T value) {
  if (fields.error()) return tl::unexpected<ApiError>(*fields.error());
  return value;
}

}  // namespace

const char* FieldOf(const Prompt& prompt) {
  return std::holds_alternative<ChatPrompt>(prompt) ? "messages" : "prompt";
}

ApiResult<RequestBody> ParseBody(std::string_view body, const RequestLimits& limits) {
  auto parsed = ParseJson(body, "the request's body",
                          {.max_bytes = std::numeric_limits<uint64_t>::max(),
                           .max_values = limits.values_max,
                           .max_depth = limits.depth_max});
  if (!parsed) {
    return tl::unexpected<ApiError>(ApiError{.message = std::move(parsed.error().message)});
  }
  return RequestBody{.text = body, .json = std::move(*parsed)};
}

ApiResult<GenerateRequest> ParseCompletion(const RequestBody& body, const RequestRules& rules) {
  GenerateRequest request;
  RequestFields fields(JsonField(body.json, ""));
  ReadPrompts(&fields, rules.limits, &request.prompts);
  RefuseUnsupported(Endpoint::kCompletion, &fields);
  ReadCommon(&fields, rules, &request);
  fields.Read("echo", &request.echo);
  // With echo, 0 asks for the prompt and its logprobs alone.
  fields.Read("max_tokens", request.echo ? 0 : 1, kIntMax, &request.max_tokens);
  if (request.max_tokens) request.max_tokens_field = "max_tokens";
  if (!request.max_tokens) request.max_tokens = 16;  // OpenAI's default
  CheckMinTokens(&fields, request);
  LimitMaxTokens(rules.defaults, &request);
  std::optional<int> logprobs;
  fields.Read("logprobs", 0, rules.limits.top_logprobs_max, &logprobs);
  request.logprobs = logprobs.has_value();
  request.top_logprobs = logprobs.value_or(0);
  return Checked(fields, std::move(request));
}

ApiResult<GenerateRequest> ParseChat(const RequestBody& body, const RequestRules& rules) {
  GenerateRequest request;
  RequestFields fields(JsonField(body.json, ""));
  ChatPrompt prompt = ReadChatPrompt(body.text, rules.limits.chat, &fields);
  ReadToolChoice(&fields, prompt, &request);
  fields.Read("include_reasoning", &request.include_reasoning);
  request.prompts.emplace_back(std::move(prompt));
  RefuseUnsupported(Endpoint::kChat, &fields);
  ReadCommon(&fields, rules, &request);
  for (const char* name : {"max_tokens", "max_completion_tokens"}) {
    fields.Read(name, 1, kIntMax, &request.max_tokens);
    if (!fields[name].null()) request.max_tokens_field = name;
  }
  CheckMinTokens(&fields, request);
  LimitMaxTokens(rules.defaults, &request);
  fields.Read("logprobs", &request.logprobs);
  fields.Read("top_logprobs", 0, rules.limits.top_logprobs_max, &request.top_logprobs);
  if (request.top_logprobs > 0 && !request.logprobs) {
    fields.Fail("top_logprobs", "needs logprobs: true");
  }
  return Checked(fields, std::move(request));
}

ApiResult<TokenizeRequest> ParseTokenize(const RequestBody& body, const RequestLimits& limits) {
  TokenizeRequest request;
  RequestFields fields(JsonField(body.json, ""));
  fields.Read("model", &request.model, kNameBytesMax);
  if (!fields["messages"].null()) {
    request.prompt = ReadChatPrompt(body.text, limits.chat, &fields);
  } else if (auto prompt = ReadOnePrompt(&fields, limits, fields["prompt"])) {
    request.prompt = std::move(*prompt);
  }
  RefuseUnsupported(Endpoint::kTokenize, &fields);
  if (!fields["add_special_tokens"].null()) {
    bool add_special = false;
    fields.Read("add_special_tokens", &add_special);
    request.add_special = add_special;
  }
  return Checked(fields, std::move(request));
}

ApiResult<DetokenizeRequest> ParseDetokenize(const RequestBody& body, const RequestLimits& limits) {
  DetokenizeRequest request;
  RequestFields fields(JsonField(body.json, ""));
  fields.Read("model", &request.model, kNameBytesMax);
  fields.Read("tokens", limits.ids_max, &request.tokens);
  if (fields["tokens"].null()) fields.Fail("tokens", "is missing");
  return Checked(fields, std::move(request));
}

}  // namespace kvcake
