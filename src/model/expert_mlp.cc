#include "model/expert_mlp.h"

#include "ops/matmul.h"

namespace kvcake {

ExpertMlp::ExpertMlp(const Compute& compute, const ModelConfig& config, int64_t max_rows)
    : compute_(compute),
      hidden_(config.hidden_size),
      routes_({.experts = config.experts.count,
               .per_row = config.experts.per_token,
               .normalized = config.experts.normalized},
              max_rows),
      logits_(max_rows * config.experts.count * sizeof(float), MemoryOf(compute.path())),
      taken_(compute.path(), max_rows, config.hidden_size),
      gated_(compute.path(), max_rows, config.intermediate_size),
      out_(max_rows * config.hidden_size * sizeof(float), MemoryOf(compute.path())) {}

uint64_t ExpertMlp::MemoryFor(const ModelConfig& config, int64_t max_rows, NumericPath path) {
  const int64_t floats = config.hidden_size + config.experts.count;
  const int64_t activations = config.hidden_size + config.intermediate_size;
  return max_rows * (floats * sizeof(float) + activations * ActivationBytes(path));
}

void ExpertMlp::Add(const LayerWeights& layer, const Activations& normed, float* x) {
  const int64_t experts = layer.router.n();
  float* const logits = logits_.as<float>();
  float* const out = out_.as<float>();
  MatMul(compute_, normed, layer.router, logits, experts);
  routes_.Set(compute_, logits, normed.rows);
  for (int expert = 0; expert < experts; ++expert) {
    const std::span<const int32_t> rows = routes_.rows(expert);
    if (rows.empty()) continue;
    const MlpWeights& mlp = layer.mlps[expert];
    const Activations taken = taken_.Rows(std::ssize(rows)), gated = gated_.Rows(taken.rows);
    TakeRows(compute_, normed, rows, taken);
    MatMulSwiGlu(compute_, taken, mlp.up, gated);
    MatMul(compute_, gated, mlp.down, out, hidden_);
    AddRows(compute_, out, rows, routes_.weights(expert), hidden_, x);
  }
}

}  // namespace kvcake
