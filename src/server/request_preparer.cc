#include "server/request_preparer.h"

#include <fmt/format.h>

#include <algorithm>
#include <random>

#include "base/dump_json.h"
#include "server/api_keys.h"
#include "server/tool_parser.h"

namespace kvcake {

using nlohmann::ordered_json;

namespace {

// Tokens that an answer has at least: none where the prompt alone is asked for.
int AnswerRoom(const GenerateRequest& asked) { return asked.max_tokens == 0 ? 0 : 1; }

// Log probabilities that so many tokens have in all answers to a prompt.
int64_t Scores(const GenerateRequest& asked, int64_t tokens) {
  return asked.logprobs ? tokens * asked.n * (1 + asked.top_logprobs) : 0;
}

}  // namespace

std::optional<ApiError> RequestPreparer::CheckModel(const std::string& model) const {
  const auto& names = options_.model_names;
  if (model.empty() || std::find(names.begin(), names.end(), model) != names.end()) return {};
  return ApiError{
      .status = 404,
      .message = fmt::format("this server has no model \"{}\", but \"{}\"", model, names[0]),
      .param = "model",
      .code = "model_not_found"};
}

// Ids that the vocabulary lacks are refused, as none of its tokens could have been meant.
std::optional<ApiError> RequestPreparer::CheckIds(const char* field,
                                                  std::span<const int32_t> ids) const {
  const int vocab = runtime_.model().vocab_size();
  const auto unknown =
      std::find_if(ids.begin(), ids.end(), [vocab](int32_t id) { return id >= vocab; });
  if (unknown == ids.end()) return std::nullopt;
  return ApiError{.message = fmt::format("{} has the id {}: the vocabulary has {} tokens", field,
                                         *unknown, vocab),
                  .param = field};
}

ApiResult<std::vector<int32_t>> RequestPreparer::Encode(const Prompt& prompt,
                                                        std::optional<bool> add_special,
                                                        size_t tokens_max,
                                                        std::string* text) const {
  if (const auto* tokens = std::get_if<std::vector<int32_t>>(&prompt)) {
    if (auto error = CheckIds("prompt", *tokens)) return tl::unexpected<ApiError>(*error);
    return *tokens;
  }
  const char* field = FieldOf(prompt);
  bool special = add_special.value_or(true);
  if (const auto* asked = std::get_if<ChatPrompt>(&prompt)) {
    special = add_special.value_or(false);  // templates write them out
    if (!chat_) return BadField(field, chat_.error().message);
    auto rendered = chat_->Render(*asked);
    if (!rendered) return BadField(field, rendered.error().message);
    *text = std::move(*rendered);
  } else {
    *text = std::get<std::string>(prompt);
  }
  if (const size_t least = runtime_.tokenizer().TokensAtLeast(text->size()); least > tokens_max) {
    return tl::unexpected<ApiError>(ApiError{
        .message = fmt::format("{} has {} bytes, which are {} tokens at least: more than the limit "
                               "of {}",
                               field, text->size(), least, tokens_max),
        .param = field,
        .code = "context_length_exceeded"});
  }
  auto tokens = runtime_.tokenizer().Encode(*text, special);
  if (!tokens) return BadField(field, tokens.error().message);
  return std::move(*tokens);
}

ApiResult<std::string> RequestPreparer::TokenizeBody(const std::string& body) const {
  const auto read = ParseBody(body, options_.rules.limits);
  if (!read) return tl::unexpected<ApiError>(read.error());
  const auto asked = ParseTokenize(*read, options_.rules.limits);
  if (!asked) return tl::unexpected<ApiError>(asked.error());
  if (auto error = CheckModel(asked->model)) return tl::unexpected<ApiError>(std::move(*error));
  std::string text;
  const auto tokens =
      Encode(asked->prompt, asked->add_special, options_.rules.limits.ids_max, &text);
  if (!tokens) return tl::unexpected<ApiError>(tokens.error());
  if (tokens->size() > options_.rules.limits.ids_max) {
    return BadField("prompt", fmt::format("prompt has {} tokens, more than the limit of {}",
                                          tokens->size(), options_.rules.limits.ids_max));
  }
  return fmt::format(R"({{"count":{},"max_model_len":{},"tokens":[{}]}})", tokens->size(),
                     options_.model_len_max, fmt::join(*tokens, ","));
}

ApiResult<std::string> RequestPreparer::DetokenizeBody(const std::string& body) const {
  const auto read = ParseBody(body, options_.rules.limits);
  if (!read) return tl::unexpected<ApiError>(read.error());
  const auto asked = ParseDetokenize(*read, options_.rules.limits);
  if (!asked) return tl::unexpected<ApiError>(asked.error());
  if (auto error = CheckModel(asked->model)) return tl::unexpected<ApiError>(std::move(*error));
  if (auto error = CheckIds("tokens", asked->tokens)) return tl::unexpected<ApiError>(*error);
  return DumpJson(
      ordered_json{{"prompt", runtime_.tokenizer().Decode(asked->tokens, /*skip_special=*/false)}});
}

ApiResult<int> RequestPreparer::AnswerTokens(const GenerateRequest& asked,
                                             int prompt_tokens) const {
  const int room = options_.model_len_max - prompt_tokens;
  const char* field = FieldOf(asked.prompts.front());
  if (prompt_tokens == 0) return BadField(field, "the prompt has no tokens");
  if (room < AnswerRoom(asked)) {
    return tl::unexpected<ApiError>(ApiError{
        .message = fmt::format("the prompt has {} tokens{}: this server's context is {} tokens",
                               prompt_tokens,
                               AnswerRoom(asked) > 0 ? " and leaves no room for an answer" : "",
                               options_.model_len_max),
        .param = field,
        .code = "context_length_exceeded"});
  }
  if (asked.max_tokens_field.empty()) {
    const int answer = std::min(asked.max_tokens.value_or(room), room);
    const int64_t each = Scores(asked, 1);
    if (each == 0) return answer;
    // What nobody has asked for yields to the limit.
    const int64_t most = std::max<int64_t>(options_.rules.limits.scores_max / each, 1);
    return static_cast<int>(std::min<int64_t>(answer, most));
  }
  if (*asked.max_tokens > room) {
    return tl::unexpected<ApiError>(ApiError{
        .message = fmt::format("{} of {} and a prompt of {} tokens are more than this server's "
                               "context of {} tokens",
                               asked.max_tokens_field, *asked.max_tokens, prompt_tokens,
                               options_.model_len_max),
        .param = asked.max_tokens_field,
        .code = "context_length_exceeded"});
  }
  return *asked.max_tokens;
}

// To warm a cache takes {"prompt": ...} or {"messages": [...]}, with the fields that a completion
// may have.
ApiResult<GenerateRequest> RequestPreparer::ParseAsked(const std::string& body, Ask ask) const {
  const auto read = ParseBody(body, options_.rules.limits);
  if (!read) return tl::unexpected<ApiError>(read.error());
  const bool chat = ask == Ask::kChat || (ask == Ask::kWarm && read->json.is_object() &&
                                          read->json.contains("messages"));
  auto asked = chat ? ParseChat(*read, options_.rules) : ParseCompletion(*read, options_.rules);
  if (!asked) return asked;
  if (ask == Ask::kWarm) {
    if (asked->prompts.size() > 1) return BadField("prompt", "prompt must be one to be warmed");
    asked->n = 1;
    asked->max_tokens = 1;  // somebody must be asked for something
    asked->min_tokens = 0;
    asked->stream = asked->echo = false;
    asked->tool_choice = ToolChoice::kNone;
  }
  if (asked->tool_choice == ToolChoice::kAuto) {
    if (!options_.auto_tool_choice) {
      return BadField("tool_choice",
                      "tool_choice \"auto\", which tools ask for, is not enabled: the server must "
                      "be started with --enable-auto-tool-choice and --tool-call-parser");
    }
    if (ReadsSpecialTokens(options_.tool_parser)) asked->skip_special = false;
  }
  return asked;
}

// What is the same of all requests for answers to `of`.
Request RequestPreparer::RequestOf(const GenerateRequest& of, const std::string& tenant) const {
  Request request;
  const bool scores_only = AnswerRoom(of) == 0;
  request.sampling = of.sampling;
  request.min_tokens = of.min_tokens;
  request.max_tokens_yields = of.max_tokens_field.empty();
  if (!scores_only) request.end_tokens = of.stop_tokens;
  if (!of.ignore_eos && !scores_only) {
    const auto& eos = runtime_.config().eos_tokens;
    request.end_tokens.insert(request.end_tokens.end(), eos.begin(), eos.end());
  }
  request.logprobs = of.logprobs;
  request.top_logprobs = of.top_logprobs;
  request.prompt_logprobs = of.echo && of.logprobs;
  request.tenant = tenant;
  request.salt = CacheSalt(tenant, of.cache_salt);
  request.store = of.kvcake.store;
  request.policy = of.kvcake.policy;
  return request;
}

ApiResult<PreparedRequest> RequestPreparer::Prepare(const std::string& body, Ask ask,
                                                    const std::string& tenant) const {
  auto asked = ParseAsked(body, ask);
  if (!asked) return tl::unexpected<ApiError>(asked.error());
  if (auto error = CheckModel(asked->model)) return tl::unexpected<ApiError>(std::move(*error));
  std::vector<int32_t> biased;
  for (const auto& [token, bias] : asked->sampling.logit_bias) biased.push_back(token);
  if (auto error = CheckIds("logit_bias", biased)) return tl::unexpected<ApiError>(*error);
  PreparedRequest prepared{.asked = std::move(*asked)};
  const GenerateRequest& of = prepared.asked;
  prepared.scores_only = AnswerRoom(of) == 0;
  const Request common = RequestOf(of, tenant);
  const size_t ids_max = options_.rules.limits.ids_max;
  const int64_t scores_max = options_.rules.limits.scores_max;
  size_t ids = 0;
  int64_t scores = 0;
  for (const Prompt& prompt : of.prompts) {
    std::string text;
    auto tokens = Encode(prompt, of.add_special, options_.model_len_max - AnswerRoom(of), &text);
    if (!tokens) return tl::unexpected<ApiError>(tokens.error());
    ids += tokens->size() * of.n;
    if (ids > ids_max && of.n * of.prompts.size() > 1) {
      return BadField(of.n > 1 ? "n" : "prompt",
                      fmt::format("the prompts of all answers have more tokens than the limit of "
                                  "{} a request",
                                  ids_max));
    }
    const auto answer = AnswerTokens(of, static_cast<int>(tokens->size()));
    if (!answer) return tl::unexpected<ApiError>(answer.error());
    scores += Scores(of, *answer + (of.echo ? static_cast<int64_t>(tokens->size()) : 0));
    if (scores > scores_max) {
      return BadField("logprobs",
                      fmt::format("logprobs asks for more than the limit of {} log probabilities a "
                                  "request, those of alternatives included: ask for fewer "
                                  "alternatives, tokens, prompts or answers (n)",
                                  scores_max));
    }
    if (of.echo && text.empty()) text = runtime_.tokenizer().Decode(*tokens, of.skip_special);
    for (int i = 0; i < of.n; ++i) {
      Request& request = prepared.requests.emplace_back(common);
      request.prompt = *tokens;
      request.max_tokens = *answer;
      // As vLLM has it, answers to the same prompt have seeds in a row.
      request.sampling.seed = of.seed ? *of.seed + i : std::random_device()();
    }
    prepared.prompt_texts.push_back(std::move(text));
  }
  return prepared;
}

}  // namespace kvcake
