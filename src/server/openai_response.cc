#include "server/openai_response.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/dump_json.h"
#include "base/utf8.h"
#include "engine/chain_json.h"

namespace kvcake {

using nlohmann::ordered_json;

namespace {

constexpr size_t kTokensAtOnce = 256;  // whose logprobs are JSON values, on the way to text
constexpr std::string_view kDone = "data: [DONE]\n\n";

std::string AsEvent(const std::string& json) { return fmt::format("data: {}\n\n", json); }
std::string AsEvent(const ordered_json& json) { return AsEvent(DumpJson(json)); }

size_t Characters(std::string_view utf8) {
  return std::count_if(utf8.begin(), utf8.end(), [](char c) { return (c & 0xc0) != 0x80; });
}

// What a piece of a chat's answer says, as members of a delta or a message.
ordered_json ChatCalls(std::span<const ToolCallDelta> calls, bool whole) {
  auto list = ordered_json::array();
  for (const ToolCallDelta& call : calls) {
    ordered_json one;
    if (!whole) one["index"] = call.index;
    ordered_json function;
    if (!call.id.empty()) {
      one["id"] = call.id;
      one["type"] = "function";
      function["name"] = call.name;
    }
    function["arguments"] = call.arguments;
    one["function"] = std::move(function);
    list.push_back(std::move(one));
  }
  return list;
}

// vLLM has renamed them: clients look for the one name or the other.
void AddReasoning(const std::string& reasoning, ordered_json* message) {
  if (reasoning.empty()) return;
  (*message)["reasoning"] = reasoning;
  (*message)["reasoning_content"] = reasoning;
}

// Has the text of an object, which ends in its brace, go on with another's.
void AppendMembers(std::string_view object, std::string* text) {
  text->back() = ',';
  text->append(object.substr(1));
}

std::string_view ReasonWithTools(FinishReason reason, bool called) {
  return called && reason == FinishReason::kStop ? "tool_calls" : OpenAiFinishReason(reason);
}

ordered_json StopReasonJson(const StopReason& reason) {
  if (const auto* text = std::get_if<std::string>(&reason)) return *text;
  if (const auto* token = std::get_if<int32_t>(&reason)) return *token;
  return nullptr;
}

ordered_json UsageOf(int prompt, int answer) {
  return {
      {"prompt_tokens", prompt}, {"completion_tokens", answer}, {"total_tokens", prompt + answer}};
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

bool HasAnswer(const Completion& completion) {
  return !completion.tokens.empty() || !FailureOf(completion);
}

std::string ErrorEvents(const ApiError& error) { return AsEvent(ErrorBody(error)).append(kDone); }

ordered_json Usage(const Completion& completion) {
  ordered_json details = {{"cached_tokens", CachedTokens(completion)}};
  const std::string& lossy = completion.report.lossy;
  if (!lossy.empty()) details["lossy_codecs"] = lossy;
  ordered_json usage =
      UsageOf(completion.report.prompt_tokens, static_cast<int>(completion.tokens.size()));
  usage["prompt_tokens_details"] = std::move(details);
  return usage;
}

ordered_json KvcakeReport(const Completion& completion) {
  return {{"queue_s", completion.queue_s},        {"restore_s", completion.restore_s},
          {"ttft_s", completion.ttft_s},          {"decode_s", completion.decode_s},
          {"steps_s", completion.steps_s},        {"preemptions", completion.preemptions},
          {"report", completion.report.ToJson()}, {"chain", ChainJson(completion.chain)}};
}

AnswerWriter::AnswerWriter(const Tokenizer& tokenizer, Options options)
    : tokenizer_(tokenizer),
      options_(std::move(options)),
      text_offsets_(options_.choices),
      usage_so_far_(options_.choices) {}

ordered_json AnswerWriter::Head(bool whole) const {
  const char* object = !options_.chat ? "text_completion"
                       : whole        ? "chat.completion"
                                      : "chat.completion.chunk";
  return {{"id", options_.id},
          {"object", object},
          {"created", options_.created},
          {"model", options_.model}};
}

// What is a part of a character alone has its bytes written out, as OpenAI does it.
std::string AnswerWriter::TokenText(int32_t token) const {
  std::string bytes = tokenizer_.Bytes(token);
  if (IsValidUtf8(bytes)) return bytes;
  std::string text = options_.chat ? "" : "bytes:";
  for (const char byte : bytes) text += fmt::format("\\x{:02x}", static_cast<uint8_t>(byte));
  return text;
}

ordered_json AnswerWriter::ChatLogprobs(std::span<const TokenInfo> tokens) const {
  const auto entry = [&](int32_t token, float logprob) -> ordered_json {
    const std::string bytes = tokenizer_.Bytes(token);
    return {{"token", TokenText(token)},
            {"logprob", logprob},
            {"bytes", std::vector<uint8_t>(bytes.begin(), bytes.end())}};
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

// Tokens may have the same text: all but one of them, the chosen one if it is among them, go by
// their ids.
ordered_json AnswerWriter::TopLogprobs(const TokenInfo& info) const {
  auto top = ordered_json::object();
  const std::string chosen = TokenText(info.token);
  bool has_chosen = false;
  for (const TokenLogprob& one : info.top) {
    const bool is_chosen = one.token == info.token;
    has_chosen = has_chosen || is_chosen;
    std::string text = TokenText(one.token);
    const bool taken = !is_chosen && (text == chosen || top.contains(text));
    if (taken) text = fmt::format("token_id:{}", one.token);
    top[text] = one.logprob;
  }
  if (!has_chosen) top[chosen] = *info.logprob;
  return top;
}

ordered_json AnswerWriter::CompletionLogprobs(std::span<const TokenInfo> tokens,
                                              size_t* text_offset) {
  ordered_json logprobs = {{"text_offset", ordered_json::array()},
                           {"token_logprobs", ordered_json::array()},
                           {"tokens", ordered_json::array()},
                           {"top_logprobs", ordered_json::array()}};
  for (const TokenInfo& info : tokens) {
    logprobs["text_offset"].push_back(*text_offset);
    logprobs["tokens"].push_back(TokenText(info.token));
    *text_offset += Characters(tokenizer_.Bytes(info.token));
    if (!info.logprob) {
      logprobs["token_logprobs"].push_back(nullptr);
      logprobs["top_logprobs"].push_back(nullptr);
      continue;
    }
    logprobs["token_logprobs"].push_back(*info.logprob);
    logprobs["top_logprobs"].push_back(TopLogprobs(info));
  }
  return logprobs;
}

ordered_json AnswerWriter::Logprobs(int choice, std::span<const TokenInfo> tokens) {
  if (!options_.logprobs) return nullptr;
  return options_.chat ? ChatLogprobs(tokens) : CompletionLogprobs(tokens, &text_offsets_[choice]);
}

// Adds what Logprobs makes as text. JSON values take ten times what their text does, so only those
// of a few tokens are there at once.
void AnswerWriter::AddLogprobs(int choice, std::span<const TokenInfo> tokens, std::string* text) {
  if (!options_.logprobs) {
    *text += "null";
    return;
  }
  std::vector<std::string> lists;  // the elements of each member, which is an array
  ordered_json some;
  do {
    const auto few = tokens.first(std::min(tokens.size(), kTokensAtOnce));
    tokens = tokens.subspan(few.size());
    some = Logprobs(choice, few);
    lists.resize(some.size());
    for (size_t i = 0; const ordered_json& array : some) {
      if (!lists[i].empty()) lists[i] += ',';
      const std::string written = DumpJson(array);
      lists[i++].append(written, 1, written.size() - 2);
    }
  } while (!tokens.empty());
  for (size_t i = 0; const auto& member : some.items()) {
    *text += fmt::format("{}\"{}\":[", i == 0 ? '{' : ',', member.key());
    text->append(lists[i++]).append("]");
  }
  *text += '}';
}

std::string AnswerWriter::WholeChoice(int index, const Choice& choice) {
  ordered_json json = {{"index", index}};
  const bool called = !choice.text.calls.empty();
  if (options_.chat) {
    ordered_json message = {{"role", "assistant"}, {"content", choice.text.content}};
    const bool only_calls = called && choice.text.content.empty();
    if (only_calls) message["content"] = nullptr;
    AddReasoning(choice.text.reasoning, &message);
    if (called) message["tool_calls"] = ChatCalls(choice.text.calls, /*whole=*/true);
    json["message"] = std::move(message);
  } else {
    json["text"] = choice.text.content;
  }
  std::string text = DumpJson(json);
  AppendMembers("{\"logprobs\":", &text);
  AddLogprobs(index, choice.tokens, &text);
  text += '}';
  ordered_json end = {{"finish_reason", ReasonWithTools(choice.completion->finish_reason, called)},
                      {"stop_reason", StopReasonJson(choice.stop_reason)}};
  if (options_.report && options_.choices > 1) end["kvcake"] = KvcakeReport(*choice.completion);
  AppendMembers(DumpJson(end), &text);
  return text;
}

std::string AnswerWriter::Whole(std::span<const Choice> choices, const Completion& sum) {
  std::string text = DumpJson(Head(/*whole=*/true));
  AppendMembers("{\"choices\":[", &text);
  for (size_t i = 0; i < choices.size(); ++i) {
    if (i > 0) text += ',';
    text += WholeChoice(static_cast<int>(i), choices[i]);
  }
  text += "]}";
  ordered_json end = {{"usage", Usage(sum)}};
  if (options_.report && choices.size() == 1) {
    end["kvcake"] = KvcakeReport(*choices.front().completion);
  }
  AppendMembers(DumpJson(end), &text);
  return text;
}

void AnswerWriter::Count(int choice, int prompt_tokens, int generated) {
  if (options_.usage_in_chunks) usage_so_far_[choice] = UsageOf(prompt_tokens, generated);
}

ordered_json AnswerWriter::ChunkBody(int index, ordered_json choice) const {
  ordered_json body = Head(/*whole=*/false);
  body["choices"] = ordered_json::array({std::move(choice)});
  if (options_.usage_in_stream) body["usage"] = usage_so_far_[index];
  return body;
}

std::string AnswerWriter::FirstEvents() {
  std::string events;
  for (int i = 0; options_.chat && i < options_.choices; ++i) {
    events += AsEvent(ChunkBody(i, {{"index", i},
                                    {"delta", {{"role", "assistant"}, {"content", ""}}},
                                    {"logprobs", nullptr},
                                    {"finish_reason", nullptr}}));
  }
  return events;
}

std::string AnswerWriter::Event(int choice, const AnswerDelta& text,
                                std::span<const TokenInfo> tokens) {
  ordered_json json = {{"index", choice}};
  if (options_.chat) {
    auto delta = ordered_json::object();
    AddReasoning(text.reasoning, &delta);
    if (!text.content.empty() || text.empty()) delta["content"] = text.content;
    if (!text.calls.empty()) delta["tool_calls"] = ChatCalls(text.calls, /*whole=*/false);
    json["delta"] = std::move(delta);
  } else {
    json["text"] = text.content;
  }
  json["logprobs"] = Logprobs(choice, tokens);
  json["finish_reason"] = nullptr;
  return AsEvent(ChunkBody(choice, std::move(json)));
}

std::string AnswerWriter::LastEvent(int choice, const Completion& completion,
                                    const StopReason& stop_reason, bool called) {
  ordered_json json = {{"index", choice}};
  if (options_.chat) {
    json["delta"] = ordered_json::object();
  } else {
    json["text"] = "";
  }
  json["logprobs"] = nullptr;
  json["finish_reason"] = ReasonWithTools(completion.finish_reason, called);
  json["stop_reason"] = StopReasonJson(stop_reason);
  ordered_json last = ChunkBody(choice, std::move(json));
  if (options_.report) last["kvcake"] = KvcakeReport(completion);
  return AsEvent(last);
}

std::string AnswerWriter::End(const Completion& sum) {
  if (!options_.usage_in_stream) return std::string(kDone);
  ordered_json usage = Head(/*whole=*/false);
  usage["choices"] = ordered_json::array();
  usage["usage"] = Usage(sum);
  return AsEvent(usage).append(kDone);
}

}  // namespace kvcake
