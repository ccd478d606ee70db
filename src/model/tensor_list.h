// The tensors that a model of a configuration has.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/config.h"

namespace kvcake {

struct TensorSpec {
  enum class Role { kEmbedding, kNorm, kBias, kWeight, kResidual };  // kResidual: adds to x

  std::string name;  // with ".weight" or ".bias"
  std::vector<int64_t> shape;
  Role role = Role::kWeight;

  int64_t elements() const;
};

// "<layers>.<layer>.<name>".
std::string LayerTensor(const ModelConfig& config, int layer, std::string_view name);

// A tensor of a layer's MLP, or of one of its experts'.
std::string MlpTensor(const ModelConfig& config, int layer, int expert, std::string_view name);
// How many MLPs a layer has.
int MlpsOf(const ModelConfig& config);

// In the order of the forward pass. A tied head is none of them.
std::vector<TensorSpec> ListTensors(const ModelConfig& config);

}  // namespace kvcake
