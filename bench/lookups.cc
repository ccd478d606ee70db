#include "bench/lookups.h"

#include <fmt/core.h>

#include <algorithm>

namespace kvcake::bench {
namespace {

// The share of the text that facts are put in: what lies beyond may be cut off.
constexpr double kDeepest = 0.95;

std::string FactText(const Fact& fact) {
  return fmt::format("The code of the {} is {}. ", fact.name, fact.code);
}

size_t SentenceEnd(std::string_view text, size_t from) {
  for (size_t i = from; i + 1 < text.size(); ++i) {
    const bool stop = text[i] == '.' || text[i] == ';' || text[i] == ':';
    if (stop && (text[i + 1] == ' ' || text[i + 1] == '\n')) return i + 2;
    if (text[i] == '\n') return i + 1;
  }
  return text.size();
}

}  // namespace

Result<std::vector<int32_t>> PlantFacts(const Tokenizer& tokenizer, std::string_view text,
                                        std::vector<Fact> facts, int tokens) {
  if (text.empty()) return Fail(ErrorCode::kInvalidArgument, "no text to plant facts in");
  std::sort(facts.begin(), facts.end(),
            [](const Fact& a, const Fact& b) { return a.depth > b.depth; });
  std::string planted;
  for (const Fact& fact : facts) planted += FactText(fact);
  ASSIGN_OR_RETURN(const auto planted_ids, tokenizer.Encode(planted, /*add_special=*/false));
  ASSIGN_OR_RETURN(const auto text_ids, tokenizer.Encode(text));
  const double bytes_per_token = static_cast<double>(text.size()) / text_ids.size();
  const double wanted = (tokens - static_cast<double>(planted_ids.size())) * bytes_per_token;
  // A part's bytes per token are not those of the whole: the text grows until it is long enough,
  // by little, because what is too long is cut off at the end and must hold no fact.
  for (double bytes = 0.6 * wanted; wanted > 0 && bytes < 4 * wanted; bytes *= 1.02) {
    std::string document;
    while (document.size() < bytes) document += text;
    document.resize(static_cast<size_t>(bytes));
    for (const Fact& fact : facts) {
      const size_t depth = static_cast<size_t>(fact.depth * kDeepest * bytes);
      document.insert(SentenceEnd(document, depth), FactText(fact));
    }
    ASSIGN_OR_RETURN(std::vector<int32_t> ids, tokenizer.Encode(document));
    if (ids.size() < static_cast<size_t>(tokens)) continue;
    ids.resize(tokens);
    return ids;
  }
  return Fail(ErrorCode::kInvalidArgument, "{} facts do not fit into {} tokens", facts.size(),
              tokens);
}

Result<std::vector<int32_t>> Ask(const Tokenizer& tokenizer, std::vector<int32_t> document,
                                 const std::string& name) {
  const std::string text =
      fmt::format("\nQuestion: what is the code of the {0}?\nAnswer: The code of the {0} is", name);
  ASSIGN_OR_RETURN(const auto question, tokenizer.Encode(text, /*add_special=*/false));
  document.insert(document.end(), question.begin(), question.end());
  return document;
}

std::string AnswerIn(std::string_view completion) {
  const size_t stop = completion.find('.');
  if (stop == std::string_view::npos) return "";
  completion = completion.substr(0, stop);
  if (completion.starts_with(' ')) completion.remove_prefix(1);
  return std::string(completion);
}

}  // namespace kvcake::bench
