// Documents with facts planted in them, and questions about the facts: what the demo model was
// trained to answer (models/demo/README.md).
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/runtime.h"

namespace kvcake::bench {

struct Fact {
  std::string name;  // "red harbour"
  std::string code;  // "4719"
  double depth = 0;  // share of the document before it, in [0, 1)
};

// `text`, repeated as often as need be, with each fact after the first end of a sentence, paragraph
// or line beyond its depth; exactly `tokens` tokens. kInvalidArgument when the text is empty or the
// facts do not fit.
Result<std::vector<int32_t>> PlantFacts(const Tokenizer& tokenizer, std::string_view text,
                                        std::vector<Fact> facts, int tokens);

// The document, then the question what the code of `name` is.
Result<std::vector<int32_t>> Ask(const Tokenizer& tokenizer, std::vector<int32_t> document,
                                 const std::string& name);

// What an answer says: its text up to the full stop, without the space before it. Empty when it
// has no full stop.
std::string AnswerIn(std::string_view completion);

}  // namespace kvcake::bench
