// What a forward pass has to do: the arithmetic that speeds are judged by.
#pragma once

#include <cstdint>

#include "model/config.h"
#include "ops/packed_matrix.h"

namespace kvcake::bench {

// The size of one weight as it is held, row scales apart.
constexpr uint64_t WeightBytes(WeightFormat format) {
  return format == WeightFormat::kInt8 ? 1 : 2;
}

// Weights that enter products, by where they are. Multiply-adds count as two FLOPs.
struct ModelWork {
  explicit ModelWork(const ModelConfig& config);

  // A mixture counts the experts that one token meets.
  int64_t layer_weights = 0;  // of one layer
  int64_t tail_weights = 0;   // of those, after attention: what the last layer does for few rows
  int64_t head_weights = 0;
  int64_t layers = 0;
  double pair_flops = 0;  // attention of one query to one key at one layer

  // All of the model's arithmetic for a prompt, causal attention once, logits for one token. What a
  // run may leave out (the last layer is needed for one row only) counts as well.
  double Prefill(int64_t tokens) const;
  // What a slice from the start of a prompt does when no logits are asked for: less than the
  // above by most of the last layer.
  double SliceWithoutLogits(int64_t tokens) const;
  // The products for one token and its logits, attention apart.
  double TokenProducts() const;
  // Weights that decoding one token of each of so many sequences reads: of a mixture's experts as
  // many as tokens would meet that go to any of them alike.
  double DecodeWeights(int sequences) const;

 private:
  int64_t experts_ = 0, experts_per_token_ = 0;
  int64_t expert_weights_ = 0;
};

}  // namespace kvcake::bench
