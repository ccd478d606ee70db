// The Llama forward pass on the CPU, over pages.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/hash.h"
#include "model/config.h"
#include "model/model.h"
#include "model/safetensors.h"
#include "ops/attention.h"
#include "ops/compute.h"
#include "ops/elementwise.h"
#include "ops/matmul.h"

namespace kvcake {

// Where weights come from, by their Hugging Face names. Tensors are borrowed during Create only.
struct WeightSource {
  std::function<Result<TensorView>(const std::string& name, std::span<const int64_t> shape)> get;
  Digest digest{};

  // Borrows the files.
  static WeightSource FromFiles(const TensorFiles& files);
};

// The rotation speed of each pair of a head's dimensions, [head_dim / 2], as Hugging Face
// transformers computes them.
std::vector<float> RopeInverseFrequencies(const RopeConfig& rope, int head_dim);

struct LlamaOptions {
  int max_batch_tokens = 512 + 64;           // a slice and some decoding sequences
  NumericPath path = NumericPath::kUnknown;  // kUnknown: the fastest of this machine
};

class LlamaModel : public Model {
 public:
  // The layout of the pages that a model of this configuration works on.
  static KvLayout LayoutFor(const ModelConfig& config, int chunk_tokens);

  // Packs the weights. Borrows the pools, which must outlive the model; pages.layout() must be
  // LayoutFor(config, chunk_tokens). kUnsupported names what the kernels cannot run.
  static Result<std::unique_ptr<LlamaModel>> Create(const ModelConfig& config,
                                                    const WeightSource& weights,
                                                    const PagePool& pages, ThreadPool& threads,
                                                    const LlamaOptions& options = {});

  const KvLayout& layout() const override { return pages_.layout(); }
  const KvIdentity& identity() const override { return identity_; }
  NumericPath numeric_path() const override { return compute_.path(); }
  int vocab_size() const override { return config_.vocab_size; }
  int max_positions() const override { return config_.max_positions; }
  int max_batch_tokens() const override { return options_.max_batch_tokens; }
  const ModelConfig& config() const { return config_; }

  Result<std::span<const float>> Forward(std::span<const Slice> batch) override;

 private:
  struct Layer {
    std::vector<float> input_norm;           // [hidden]
    PackedMatrix qkv;                        // [(heads + 2 kv_heads) head_dim][hidden]
    PackedMatrix o;                          // [hidden][heads head_dim]
    std::vector<float> post_attention_norm;  // [hidden]
    PackedMatrix gate_up;                    // [2 intermediate][hidden], interleaved
    PackedMatrix down;                       // [hidden][intermediate]
  };

  LlamaModel(const ModelConfig& config, const PagePool& pages, ThreadPool& threads,
             const LlamaOptions& options);
  Status LoadWeights(const WeightSource& weights);
  Status LoadLayer(const WeightSource& weights, int index);
  void MakeIdentity(const Digest& weights_digest);

  int64_t Gather(std::span<const Slice> batch);
  void Embed(int64_t rows);
  void RotateAndWriteKv(std::span<const Slice> batch, int layer, int64_t rows);
  int64_t KeepLogitRows(std::span<const Slice> batch);
  void ListAttention(std::span<const Slice> batch, bool wanted_only);
  static int64_t WantedRows(const Slice& slice);
  int64_t qkv_size() const { return (config_.heads + 2 * config_.kv_heads) * config_.head_dim; }
  const PackedMatrix& lm_head() const { return config_.tie_embeddings ? embedding_ : lm_head_; }

  // Constant after construction.
  const ModelConfig config_;
  const LlamaOptions options_;
  const PagePool& pages_;
  const Compute compute_;
  const QkvShape qkv_shape_;
  KvIdentity identity_;
  std::vector<float> inv_freq_;  // [head_dim / 2]
  PackedMatrix embedding_;       // [vocab][hidden]
  std::vector<Layer> layers_;
  std::vector<float> norm_;  // [hidden]
  PackedMatrix lm_head_;     // [vocab][hidden]; empty when tied to the embedding

  // Scratch of one step, for up to max_batch_tokens rows.
  Attention attention_;
  Buffer x_;                            // [rows][hidden] f32, the residual stream
  Buffer qkv_;                          // [rows][(heads + 2 kv_heads) head_dim] f32
  Buffer rope_;                         // [rows][2][head_dim / 2] f32, cos and sin
  Buffer logits_;                       // [rows][vocab] f32
  ActivationBuffer normed_;             // [rows][hidden]
  ActivationBuffer attended_;           // [rows][heads head_dim]
  ActivationBuffer gated_;              // [rows][intermediate]
  std::vector<int32_t> tokens_;         // [rows]
  std::vector<int32_t> positions_;      // [rows]
  std::vector<KvSlot> slots_;           // [rows]
  std::vector<AttentionSlice> slices_;  // one a slice of the batch
};

}  // namespace kvcake
