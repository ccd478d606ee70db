#include "bench/prompt_writer.h"

#include "base/dump_json.h"

namespace kvcake::bench {
namespace {

constexpr const char* kBetween = "\n\n";

}  // namespace

PromptWriter::PromptWriter(const TextSource& source, const Workload& workload, Options options)
    : source_(source), workload_(workload), options_(std::move(options)) {}

const char* PromptWriter::path() const {
  return options_.chat ? "/v1/chat/completions" : "/v1/completions";
}

std::string PromptWriter::Text(std::span<const TextPiece> pieces) const {
  std::string text;
  for (const TextPiece& piece : pieces) {
    if (!text.empty()) text += kBetween;
    text += source_.Cut(piece, options_.characters_per_token, workload_.seed);
  }
  return text;
}

// An answer follows what it answers at once, as it did when it was made: so its KV can be found.
nlohmann::json PromptWriter::Prompt(std::span<const Turn> turns) const {
  std::string text;
  if (workload_.system.tokens > 0) text = Text(std::span(&workload_.system, 1));
  for (const Turn& turn : turns) {
    if (!text.empty()) text += kBetween;
    text += Text(turn.request->text);
    if (turn.answer != nullptr) text += *turn.answer;
  }
  return text;
}

nlohmann::json PromptWriter::Messages(std::span<const Turn> turns) const {
  nlohmann::json messages = nlohmann::json::array();
  const auto add = [&](const char* role, std::string content) {
    messages.push_back({{"role", role}, {"content", std::move(content)}});
  };
  if (workload_.system.tokens > 0) add("system", Text(std::span(&workload_.system, 1)));
  for (const Turn& turn : turns) {
    add("user", Text(turn.request->text));
    if (turn.answer != nullptr) add("assistant", *turn.answer);
  }
  return messages;
}

std::string PromptWriter::Body(std::span<const Turn> turns, const nlohmann::json& more) const {
  nlohmann::json body = {{"model", options_.model},
                         {"max_tokens", turns.back().request->max_tokens},
                         {"temperature", 0},
                         {"stream", true},
                         {"stream_options", {{"include_usage", true}}}};
  if (options_.ignore_eos) body["ignore_eos"] = true;
  if (options_.chat) {
    body["messages"] = Messages(turns);
  } else {
    body["prompt"] = Prompt(turns);
  }
  if (options_.extra.is_object()) body.merge_patch(options_.extra);
  if (more.is_object()) body.merge_patch(more);
  return DumpJson(body);
}

}  // namespace kvcake::bench
