// A model's weights: checked against its configuration, then packed for the kernels.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/hash.h"
#include "model/config.h"
#include "model/safetensors.h"
#include "ops/compute.h"
#include "ops/elementwise.h"
#include "ops/matmul.h"

namespace kvcake {

// Where weights come from, by their Hugging Face names. Tensors are borrowed while loading only.
struct WeightSource {
  // kNotFound, or kInvalidArgument when the shape differs; both name the tensor.
  std::function<Result<TensorView>(const std::string& name, std::span<const int64_t> shape)> get;
  // Once loading has got all it wants: waits until every tensor has been read through. kCorrupt
  // when one of those got holds NaN or infinity; what was loaded is garbage then.
  std::function<Result<Digest>()> digest;
  // What was got so far is not needed again soon. May be empty.
  std::function<void()> release = {};

  // Borrows the files, and begins to read them.
  static WeightSource FromFiles(const TensorFiles& files);
};

struct NormTensors {
  Buffer weight;
  Buffer bias;  // NormKind::kLayer; else empty
  float eps = 0;

  NormWeights view() const {
    return {.weight = weight.as<float>(), .bias = bias.as<float>(), .eps = eps};
  }
};

struct MlpWeights {
  PackedMatrix up;    // [intermediate][hidden], or gate and up by PackedMatrix::GateUp
  PackedMatrix down;  // [hidden][intermediate]
};

struct LayerWeights {
  NormTensors attention_norm;    // [hidden]
  PackedMatrix qkv;              // [(heads + 2 kv_heads) head_dim][hidden]: queries, keys, values
  NormTensors q_norm, k_norm;    // [head_dim]; empty without qk_norm
  PackedMatrix o;                // [hidden][heads head_dim]
  NormTensors mlp_norm;          // [hidden]; BlockKind::kParallel: the same as attention_norm
  PackedMatrix router;           // [experts][hidden]; empty without
  std::vector<MlpWeights> mlps;  // one, or one of each expert
};

struct ModelWeights {
  PackedMatrix embedding;  // [vocab][hidden]
  std::vector<LayerWeights> layers;
  NormTensors final_norm;  // [hidden]
  PackedMatrix head;       // [vocab][hidden]; empty when it is the embedding
};

// Every tensor is there and has its shape. Allocates nothing.
Status CheckWeights(const ModelConfig& config, const WeightSource& source);
// The names of tensors that the files have and the model has not, but for the buffers that old
// files hold.
std::vector<std::string> UnusedTensors(const ModelConfig& config, const TensorFiles& files);
// After CheckWeights. Matrices, the embedding and the head among them, are rounded to `format`,
// routers to kBf16; norms and biases stay as they are.
Result<ModelWeights> LoadWeights(const Compute& compute, const ModelConfig& config,
                                 const WeightSource& source, WeightFormat format);

}  // namespace kvcake
