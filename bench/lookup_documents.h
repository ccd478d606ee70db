// The documents and questions that bench quality asks.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "bench/lookups.h"
#include "engine/runtime.h"

namespace kvcake::bench {

constexpr int kFactsPerDocument = 9;  // each is asked for among eight others

struct Document {
  std::vector<int32_t> tokens;
  std::vector<Fact> facts;
};

// For each of `lengths`, in tokens, documents of parts of `text` with at least `lookups` facts in
// all, whose names are those of DIR/names.txt. The same for the same arguments on every machine.
Result<std::vector<std::vector<Document>>> LookupDocuments(const Tokenizer& tokenizer,
                                                           const std::string& dir,
                                                           const std::string& text,
                                                           std::span<const int> lengths,
                                                           int lookups);

// Asks for one of the document's facts, whose code AnswerIn finds in the tokens. What memory or a
// store has of the document is loaded, and nothing is stored.
Result<Completion> AskFor(Runtime& runtime, const Document& document, const Fact& fact);

}  // namespace kvcake::bench
