#include "server/openai_response.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/dump_json.h"
#include "engine/chain_json.h"

namespace kvcake {

using nlohmann::ordered_json;

namespace {

constexpr std::string_view kDone = "data: [DONE]\n\n";

std::string AsEvent(const std::string& json) { return fmt::format("data: {}\n\n", json); }
std::string AsEvent(const ordered_json& json) { return AsEvent(DumpJson(json)); }

size_t Characters(std::string_view utf8) {
  return std::count_if(utf8.begin(), utf8.end(), [](char c) { return (c & 0xc0) != 0x80; });
}

}  // namespace

std::string_view OpenAiFinishReason(FinishReason reason) {
  return reason == FinishReason::kLength ? "length" : "stop";
}

std::optional<ApiError> FailureOf(const Completion& completion) {
  switch (completion.finish_reason) {
    case FinishReason::kStop:
    case FinishReason::kLength:
      return std::nullopt;
    case FinishReason::kCancelled:
      return ApiError{.status = 503, .message = "the server gave the request up"};
    case FinishReason::kError:
      if (!completion.error.empty()) return ApiError{.status = 503, .message = completion.error};
      return ApiError{.status = 500, .message = "the model failed: the server's log says why"};
  }
  return std::nullopt;
}

std::string ErrorEvents(const ApiError& error) { return AsEvent(ErrorBody(error)).append(kDone); }

int CachedTokens(const Completion& completion) {
  const RestoreReport& report = completion.report;
  // The last token is computed again even if all were there: somebody must make logits.
  return std::min(report.tokens_reused + report.loaded(), std::max(report.prompt_tokens - 1, 0));
}

ordered_json Usage(const Completion& completion) {
  const int prompt = completion.report.prompt_tokens;
  const int answer = static_cast<int>(completion.tokens.size());
  return {{"prompt_tokens", prompt},
          {"completion_tokens", answer},
          {"total_tokens", prompt + answer},
          {"prompt_tokens_details", {{"cached_tokens", CachedTokens(completion)}}}};
}

ordered_json KvcakeReport(const Completion& completion) {
  return {{"queue_s", completion.queue_s},        {"restore_s", completion.restore_s},
          {"ttft_s", completion.ttft_s},          {"decode_s", completion.decode_s},
          {"steps_s", completion.steps_s},        {"preemptions", completion.preemptions},
          {"report", completion.report.ToJson()}, {"chain", ChainJson(completion.chain)}};
}

AnswerWriter::AnswerWriter(const Tokenizer& tokenizer, Options options)
    : tokenizer_(tokenizer), options_(std::move(options)) {}

ordered_json AnswerWriter::Head(bool whole) const {
  const char* object = !options_.chat ? "text_completion"
                       : whole        ? "chat.completion"
                                      : "chat.completion.chunk";
  return {{"id", options_.id},
          {"object", object},
          {"created", options_.created},
          {"model", options_.model}};
}

std::string AnswerWriter::TokenText(int32_t token) const {
  return tokenizer_.Decode(std::span(&token, 1), /*skip_special=*/false);
}

ordered_json AnswerWriter::ChatLogprobs(std::span<const TokenInfo> tokens) const {
  const auto entry = [&](int32_t token, float logprob) -> ordered_json {
    const std::string text = TokenText(token);
    return {{"token", text},
            {"logprob", logprob},
            {"bytes", std::vector<uint8_t>(text.begin(), text.end())}};
  };
  auto content = ordered_json::array();
  for (const TokenInfo& info : tokens) {
    ordered_json one = entry(info.token, info.logprob.value_or(0));
    one["top_logprobs"] = ordered_json::array();
    for (const TokenLogprob& top : info.top) {
      one["top_logprobs"].push_back(entry(top.token, top.logprob));
    }
    content.push_back(std::move(one));
  }
  return {{"content", std::move(content)}};
}

ordered_json AnswerWriter::CompletionLogprobs(std::span<const TokenInfo> tokens) {
  ordered_json logprobs = {{"text_offset", ordered_json::array()},
                           {"token_logprobs", ordered_json::array()},
                           {"tokens", ordered_json::array()},
                           {"top_logprobs", ordered_json::array()}};
  for (const TokenInfo& info : tokens) {
    const std::string text = TokenText(info.token);
    logprobs["text_offset"].push_back(text_offset_);
    logprobs["tokens"].push_back(text);
    text_offset_ += Characters(text);
    if (!info.logprob) {
      logprobs["token_logprobs"].push_back(nullptr);
      logprobs["top_logprobs"].push_back(nullptr);
      continue;
    }
    logprobs["token_logprobs"].push_back(*info.logprob);
    auto top = ordered_json::object();
    for (const TokenLogprob& one : info.top) top[TokenText(one.token)] = one.logprob;
    top[text] = *info.logprob;  // the chosen one is among them
    logprobs["top_logprobs"].push_back(std::move(top));
  }
  return logprobs;
}

ordered_json AnswerWriter::Logprobs(std::span<const TokenInfo> tokens) {
  if (!options_.logprobs) return nullptr;
  return options_.chat ? ChatLogprobs(tokens) : CompletionLogprobs(tokens);
}

std::string AnswerWriter::Whole(std::string_view text, std::span<const TokenInfo> tokens,
                                const Completion& completion) {
  ordered_json choice = {{"index", 0}};
  if (options_.chat) {
    choice["message"] = {{"role", "assistant"}, {"content", text}};
  } else {
    choice["text"] = text;
  }
  choice["logprobs"] = Logprobs(tokens);
  choice["finish_reason"] = OpenAiFinishReason(completion.finish_reason);
  ordered_json body = Head(/*whole=*/true);
  body["choices"] = ordered_json::array({std::move(choice)});
  body["usage"] = Usage(completion);
  if (options_.report) body["kvcake"] = KvcakeReport(completion);
  return DumpJson(body);
}

std::string AnswerWriter::Chunk(ordered_json choice) const {
  ordered_json body = Head(/*whole=*/false);
  body["choices"] = ordered_json::array({std::move(choice)});
  if (options_.usage_in_stream) body["usage"] = nullptr;
  return AsEvent(body);
}

std::string AnswerWriter::FirstEvent() {
  if (!options_.chat) return "";
  return Chunk({{"index", 0},
                {"delta", {{"role", "assistant"}, {"content", ""}}},
                {"logprobs", nullptr},
                {"finish_reason", nullptr}});
}

std::string AnswerWriter::Event(std::string_view text, std::span<const TokenInfo> tokens) {
  ordered_json choice = {{"index", 0}};
  if (options_.chat) {
    choice["delta"] = {{"content", text}};
  } else {
    choice["text"] = text;
  }
  choice["logprobs"] = Logprobs(tokens);
  choice["finish_reason"] = nullptr;
  return Chunk(std::move(choice));
}

std::string AnswerWriter::LastEvents(const Completion& completion) {
  ordered_json choice = {{"index", 0}};
  if (options_.chat) {
    choice["delta"] = ordered_json::object();
  } else {
    choice["text"] = "";
  }
  choice["logprobs"] = nullptr;
  choice["finish_reason"] = OpenAiFinishReason(completion.finish_reason);
  ordered_json last = Head(/*whole=*/false);
  last["choices"] = ordered_json::array({std::move(choice)});
  if (options_.usage_in_stream) last["usage"] = nullptr;
  if (options_.report) last["kvcake"] = KvcakeReport(completion);
  std::string events = AsEvent(last);
  if (options_.usage_in_stream) {
    ordered_json usage = Head(/*whole=*/false);
    usage["choices"] = ordered_json::array();
    usage["usage"] = Usage(completion);
    events += AsEvent(usage);
  }
  return events.append(kDone);
}

}  // namespace kvcake
