// How likely a model finds a text: the logits at every position, and losses from them.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "base/status.h"
#include "kv/page_pool.h"
#include "model/model.h"

namespace kvcake {

struct ScoreOptions {
  int slice_tokens = 512;  // most tokens of one forward pass, which also has its own limit
  // Pages that hold the first chunks' KV already (restored, say); their positions are not visited.
  std::span<const PageId> kept = {};
};

// Sees the logits of the token that follows `position`: f32 [vocab_size], valid during the call.
using LogitsVisitor = std::function<void(int position, std::span<const float> logits)>;

// Runs `tokens` through the model and visits each position after the kept chunks in order. Draws
// pages of `pool`, the one that the model works on, and gives them back. Before anything is
// computed, kInvalidArgument names a token outside the vocabulary or a text longer than the
// context, and kResourceExhausted says that the pool has too few pages.
[[nodiscard]] Status VisitLogits(Model& model, PagePool& pool, std::span<const int32_t> tokens,
                                 const ScoreOptions& options, const LogitsVisitor& visit);

// -log softmax(logits)[token]: the natural logarithm, computed in double.
double NegativeLogLikelihood(std::span<const float> logits, int32_t token);

}  // namespace kvcake
