// The one forward pass, on the CPU, over pages: it reads ModelConfig and knows no families.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "model/config.h"
#include "model/model.h"
#include "model/weights.h"
#include "ops/attention.h"
#include "ops/compute.h"
#include "ops/elementwise.h"
#include "ops/matmul.h"

namespace kvcake {

struct TransformerOptions {
  int max_batch_tokens = 512 + 64;           // a slice and some decoding sequences
  int max_logit_rows = 0;                    // of one step; 0: max_batch_tokens
  NumericPath path = NumericPath::kUnknown;  // kUnknown: the fastest of this machine
  WeightFormat weights = WeightFormat::kBf16;
};

class TransformerModel : public Model {
 public:
  // The layout of the pages that a model of this configuration works on.
  static KvLayout LayoutFor(const ModelConfig& config, int chunk_tokens);

  // Checks the weights and packs them. Borrows the pools, which must outlive the model;
  // pages.layout() must be LayoutFor(config, chunk_tokens). kUnsupported as CheckRunnable says.
  static Result<std::unique_ptr<TransformerModel>> Create(const ModelConfig& config,
                                                          const WeightSource& weights,
                                                          const PagePool& pages,
                                                          ThreadPool& threads,
                                                          const TransformerOptions& options = {});

  const KvLayout& layout() const override { return pages_.layout(); }
  const KvIdentity& identity() const override { return identity_; }
  NumericPath numeric_path() const override { return compute_.path(); }
  int vocab_size() const override { return config_.vocab_size; }
  int max_positions() const override { return config_.max_positions; }
  int max_batch_tokens() const override { return options_.max_batch_tokens; }
  const ModelConfig& config() const { return config_; }

  Result<std::span<const float>> Forward(std::span<const Slice> batch) override;

 private:
  TransformerModel(const ModelConfig& config, const PagePool& pages, ThreadPool& threads,
                   const TransformerOptions& options);

  int64_t Gather(std::span<const Slice> batch);
  void Embed(int64_t rows);
  void Normalize(const NormTensors& norm, int64_t rows);
  void Mlp(const LayerWeights& layer, int64_t rows);
  void RotateAndWriteKv(std::span<const Slice> batch, int layer, int64_t rows);
  int64_t KeepLogitRows(std::span<const Slice> batch);
  void ListAttention(std::span<const Slice> batch, bool wanted_only);
  static int64_t WantedRows(const Slice& slice);
  int64_t qkv_size() const { return (config_.heads + 2 * config_.kv_heads) * config_.head_dim; }
  const PackedMatrix& head() const {
    return weights_.head.n() > 0 ? weights_.head : weights_.embedding;
  }

  // Constant after construction.
  const ModelConfig config_;
  const TransformerOptions options_;
  const PagePool& pages_;
  const Compute compute_;
  const QkvShape qkv_shape_;
  KvIdentity identity_;
  ModelWeights weights_;
  std::vector<float> inv_freq_;  // [head_dim / 2]; zeros, which rotate nothing, without RoPE

  // Scratch of one step, for up to max_batch_tokens rows.
  Attention attention_;
  Buffer x_;                            // [rows][hidden] f32, the residual stream
  Buffer qkv_;                          // [rows][(heads + 2 kv_heads) head_dim] f32
  Buffer rope_;                         // [rows][2][head_dim / 2] f32, cos and sin
  Buffer logits_;                       // [max_logit_rows][vocab] f32
  ActivationBuffer normed_;             // [rows][hidden]
  ActivationBuffer attended_;           // [rows][heads head_dim]
  ActivationBuffer gated_;              // [rows][intermediate]
  std::vector<int32_t> tokens_;         // [rows]
  std::vector<int32_t> positions_;      // [rows]
  std::vector<KvSlot> slots_;           // [rows]
  std::vector<AttentionSlice> slices_;  // one a slice of the batch
};

}  // namespace kvcake
