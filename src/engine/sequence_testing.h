// For tests of what handles sequences without a model.
#pragma once

#include <memory>

#include "engine/sequence.h"

namespace kvcake {

// One that waits, on a document of that number: of the same document, the shorter prompt is the
// beginning of the longer.
inline std::unique_ptr<Sequence> WaitingSequence(SequenceId id, int prompt_tokens, int max_tokens,
                                                 int document, int chunk_tokens) {
  auto sequence = std::make_unique<Sequence>();
  sequence->id = id;
  sequence->request.prompt.assign(prompt_tokens, 1);
  sequence->request.max_tokens = max_tokens;
  sequence->tokens = sequence->request.prompt;
  sequence->root.digest[0] = static_cast<uint8_t>(document);
  sequence->MakeKeys(chunk_tokens);
  return sequence;
}

}  // namespace kvcake
