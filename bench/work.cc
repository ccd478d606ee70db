#include "bench/work.h"

#include <algorithm>
#include <cmath>

namespace kvcake::bench {

namespace {
// (query, key) pairs of a prompt, each query seeing itself and what came before.
double CausalPairs(int64_t tokens) { return 0.5 * static_cast<double>(tokens) * (tokens + 1.0); }
}  // namespace

ModelWork::ModelWork(const ModelConfig& config) : layers(config.layers) {
  const int64_t hidden = config.hidden_size, q = int64_t{config.heads} * config.head_dim,
                kv = int64_t{config.kv_heads} * config.head_dim;
  const int64_t mlp_matrices = config.mlp == MlpKind::kSwiGlu ? 3 : 2;
  const ExpertsConfig& experts = config.experts;
  const int64_t mlp_weights = mlp_matrices * hidden * config.intermediate_size;
  if (experts.count > 0) {
    experts_ = experts.count;
    experts_per_token_ = experts.per_token;
    expert_weights_ = mlp_weights;
  }
  tail_weights = hidden * q + hidden * experts.count + std::max(1, experts.per_token) * mlp_weights;
  layer_weights = hidden * (q + 2 * kv) + tail_weights;
  head_weights = hidden * config.vocab_size;
  pair_flops = 4.0 * static_cast<double>(q);
}

double ModelWork::Prefill(int64_t tokens) const {
  return 2.0 * static_cast<double>(layers * layer_weights * tokens + head_weights) +
         static_cast<double>(layers) * pair_flops * CausalPairs(tokens);
}

double ModelWork::SliceWithoutLogits(int64_t tokens) const {
  return 2.0 * static_cast<double>((layers * layer_weights - tail_weights) * tokens) +
         static_cast<double>(layers - 1) * pair_flops * CausalPairs(tokens);
}

double ModelWork::TokenProducts() const {
  return 2.0 * static_cast<double>(layers * layer_weights + head_weights);
}

double ModelWork::DecodeWeights(int sequences) const {
  const auto experts = static_cast<double>(experts_);
  const auto per_token = static_cast<double>(experts_per_token_);
  const double met =
      experts_ == 0 ? 0 : experts * (1 - std::pow(1 - per_token / experts, sequences));
  return static_cast<double>(layers * layer_weights + head_weights) +
         static_cast<double>(layers * expert_weights_) * (met - per_token);
}

}  // namespace kvcake::bench
