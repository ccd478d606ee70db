#include "model/tensor_list.h"

#include <fmt/core.h>

#include <algorithm>

namespace kvcake {

namespace {

using Role = TensorSpec::Role;

// A projection with its bias, or a norm with its own.
class List {
 public:
  explicit List(std::vector<TensorSpec>* out) : out_(*out) {}

  void Matrix(const std::string& name, int64_t rows, int64_t columns, bool bias,
              Role role = Role::kWeight) {
    out_.push_back({name + ".weight", {rows, columns}, role});
    if (bias) out_.push_back({name + ".bias", {rows}, Role::kBias});
  }
  void Norm(const std::string& name, int64_t size, NormKind kind) {
    out_.push_back({name + ".weight", {size}, Role::kNorm});
    if (kind == NormKind::kLayer) out_.push_back({name + ".bias", {size}, Role::kBias});
  }

 private:
  std::vector<TensorSpec>& out_;
};

void ListLayer(const ModelConfig& c, int layer, List* list) {
  const int64_t hidden = c.hidden_size, inner = c.intermediate_size;
  const int64_t query = static_cast<int64_t>(c.heads) * c.head_dim;
  const int64_t kv = static_cast<int64_t>(c.kv_heads) * c.head_dim;
  const auto name = [&](std::string_view part) { return LayerTensor(c, layer, part); };
  list->Norm(name(c.names.attention_norm), hidden, c.norm);
  if (c.qkv == QkvKind::kFused) {
    list->Matrix(name(c.names.qkv), query + 2 * kv, hidden, c.qkv_bias);
  } else {
    list->Matrix(name(c.names.q), query, hidden, c.qkv_bias);
    list->Matrix(name(c.names.k), kv, hidden, c.qkv_bias);
    list->Matrix(name(c.names.v), kv, hidden, c.qkv_bias);
  }
  if (c.qk_norm) {
    list->Norm(name(c.names.q_norm), c.head_dim, NormKind::kRms);
    list->Norm(name(c.names.k_norm), c.head_dim, NormKind::kRms);
  }
  list->Matrix(name(c.names.o), hidden, query, c.o_bias, Role::kResidual);
  if (c.block != BlockKind::kParallel) list->Norm(name(c.names.mlp_norm), hidden, c.norm);
  if (c.experts.count > 0) list->Matrix(name(c.names.router), c.experts.count, hidden, false);
  for (int i = 0; i < MlpsOf(c); ++i) {
    const auto of_mlp = [&](std::string_view part) { return MlpTensor(c, layer, i, part); };
    if (c.mlp == MlpKind::kSwiGlu) list->Matrix(of_mlp(c.names.gate), inner, hidden, c.mlp_bias);
    list->Matrix(of_mlp(c.names.up), inner, hidden, c.mlp_bias);
    list->Matrix(of_mlp(c.names.down), hidden, inner, c.mlp_bias, Role::kResidual);
  }
}

}  // namespace

int64_t TensorSpec::elements() const {
  int64_t n = 1;
  for (const int64_t dimension : shape) n *= dimension;
  return n;
}

std::string LayerTensor(const ModelConfig& config, int layer, std::string_view name) {
  return fmt::format("{}.{}.{}", config.names.layers, layer, name);
}

std::string MlpTensor(const ModelConfig& config, int layer, int expert, std::string_view name) {
  if (config.experts.count == 0) return LayerTensor(config, layer, name);
  return LayerTensor(config, layer, fmt::format("{}.{}.{}", config.names.experts, expert, name));
}

int MlpsOf(const ModelConfig& config) { return std::max(1, config.experts.count); }

std::vector<TensorSpec> ListTensors(const ModelConfig& config) {
  std::vector<TensorSpec> tensors;
  List list(&tensors);
  list.Matrix(std::string(config.names.embedding), config.vocab_size, config.hidden_size, false,
              Role::kEmbedding);
  for (int layer = 0; layer < config.layers; ++layer) ListLayer(config, layer, &list);
  list.Norm(std::string(config.names.final_norm), config.hidden_size, config.norm);
  if (!config.tie_embeddings) {
    list.Matrix(std::string(config.names.head), config.vocab_size, config.hidden_size, false);
  }
  return tensors;
}

}  // namespace kvcake
