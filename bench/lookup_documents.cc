#include "bench/lookup_documents.h"

#include <fmt/core.h>

#include <random>
#include <sstream>

#include "bench/harness.h"
#include "bench/held_out.h"

namespace kvcake::bench {
namespace {

Result<std::vector<std::string>> ReadNames(const std::string& dir) {
  ASSIGN_OR_RETURN(const std::string text, ReadWholeText(dir + "/names.txt"));
  std::istringstream lines(text);
  std::vector<std::string> names;
  for (std::string line; std::getline(lines, line);) {
    if (!line.empty()) names.push_back(line);
  }
  if (names.size() < kFactsPerDocument) {
    return Fail(ErrorCode::kInvalidArgument, "{}/names.txt: {} names, at least {} are needed", dir,
                names.size(), kFactsPerDocument);
  }
  return names;
}

std::vector<Fact> DrawFacts(std::mt19937_64& rng, std::vector<std::string>& names) {
  std::vector<Fact> facts(kFactsPerDocument);
  for (int i = 0; i < kFactsPerDocument; ++i) {
    std::swap(names[i], names[i + rng() % (names.size() - i)]);
    facts[i] = {names[i], std::to_string(1000 + rng() % 9000), (rng() % 10000) / 10000.0};
  }
  return facts;
}

}  // namespace

Result<std::vector<std::vector<Document>>> LookupDocuments(const Tokenizer& tokenizer,
                                                           const std::string& dir,
                                                           const std::string& text,
                                                           std::span<const int> lengths,
                                                           int lookups) {
  ASSIGN_OR_RETURN(std::vector<std::string> names, ReadNames(dir));
  std::vector<std::vector<Document>> all;
  std::mt19937_64 rng(1);
  for (const int tokens : lengths) {
    std::vector<Document>& documents = all.emplace_back();
    for (int asked = 0; asked < lookups; asked += kFactsPerDocument) {
      Document document{.tokens = {}, .facts = DrawFacts(rng, names)};
      const size_t start = text.find('\n', rng() % (text.size() / 2)) + 1;
      ASSIGN_OR_RETURN(document.tokens,
                       PlantFacts(tokenizer, text.substr(start), document.facts, tokens));
      documents.push_back(std::move(document));
    }
  }
  return all;
}

Result<Completion> AskFor(Runtime& runtime, const Document& document, const Fact& fact) {
  ASSIGN_OR_RETURN(auto prompt, Ask(runtime.tokenizer(), document.tokens, fact.name));
  return runtime.engine().Answer({.prompt = std::move(prompt),
                                  .max_tokens = kAnswerTokens,
                                  .store = false,
                                  .policy = Policy::kLoad});
}

}  // namespace kvcake::bench
