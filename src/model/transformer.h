// The one forward pass, over pages, on the CPU or a CUDA device: it reads ModelConfig and knows no
// families.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "model/config.h"
#include "model/expert_mlp.h"
#include "model/model.h"
#include "model/weights.h"
#include "ops/attention.h"
#include "ops/compute.h"
#include "ops/elementwise.h"
#include "ops/matmul.h"
#include "ops/sample.h"
#include "ops/step_array.h"
#include "ops/step_graphs.h"

namespace kvcake {

struct TransformerOptions {
  int max_batch_tokens = 512 + 64;           // a slice and some decoding sequences
  int max_logit_rows = 0;                    // of one step; 0: max_batch_tokens
  int max_slices = 0;                        // of one step; 0: max_batch_tokens
  NumericPath path = NumericPath::kUnknown;  // kUnknown: the fastest of this machine
  WeightFormat weights = WeightFormat::kBf16;
  bool enforce_eager = false;  // enqueue every step's kernels, without CUDA graphs
  AttentionBackend attention_backend = AttentionBackend::kAuto;
  std::string lossy_lineage = {};  // MakeIdentity's
};

class TransformerModel : public Model {
 public:
  // The layout of the pages that a model of this configuration works on.
  static KvLayout LayoutFor(const ModelConfig& config, int chunk_tokens);

  // About how many bytes its weights and scratch take.
  static uint64_t MemoryFor(const ModelConfig& config, const TransformerOptions& options);

  // Checks the weights and packs them. Borrows the pools, which must outlive the model;
  // pages.layout() must be LayoutFor(config, chunk_tokens), and their memory the path's.
  // kUnsupported as CheckRunnable and CheckAttentionBackend say.
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
  // Steps that were not enqueued but launched as a CUDA graph.
  uint64_t graph_launches() const { return graphs_.launches(); }

  Result<std::span<const float>> Forward(std::span<const Slice> slices) override;
  bool samples() const override { return true; }
  std::span<const int32_t> sampled() const override { return sampled_tokens_; }

 private:
  TransformerModel(const ModelConfig& config, const PagePool& pages, ThreadPool& threads,
                   const TransformerOptions& options);

  // What kernels read of a step's rows.
  struct Rows {
    std::span<const int32_t> tokens;
    std::span<const int32_t> positions;
    std::span<const KvSlot> slots;
    std::span<const int32_t> wanted;  // whose logits are
    std::span<const RowSampling> sampling;
  };

  std::span<const Slice> SampledLast(std::span<const Slice> slices);
  Rows Gather(std::span<const Slice> batch);
  void PlanAttention(std::span<const Slice> batch, bool wanted_only);
  StepGraphs::Key GraphKey(const Rows& step) const;
  Status Layers(const Rows& step, LayerGate* gate);
  Activations Normalize(const NormTensors& norm, const float* x, int64_t rows);
  void Qkv(const LayerWeights& layer, const Activations& normed, std::span<const KvSlot> slots,
           int index);
  void Mlp(const LayerWeights& layer, const Activations& normed, float* x);
  std::span<const float> Fetch(const Rows& step);
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
  Buffer inv_freq_;  // [head_dim / 2] f32; zeros, which rotate nothing, without RoPE

  // Scratch of one step, for up to max_batch_tokens rows.
  std::unique_ptr<Attention> attention_;
  std::unique_ptr<AttentionPlan> every_row_, wanted_rows_;
  Buffer x_;                      // [rows][hidden] f32, the residual stream
  Buffer wanted_x_;               // [max_logit_rows][hidden] f32, of the rows whose logits are
  Buffer qkv_;                    // [rows][(heads + 2 kv_heads) head_dim] f32
  Buffer rope_;                   // [rows][2][head_dim / 2] f32, cos and sin
  StepResult<float> logits_;      // [max_logit_rows][vocab]
  ActivationBuffer normed_;       // [rows][hidden]
  ActivationBuffer attended_;     // [rows][heads head_dim]
  ActivationBuffer gated_;        // [rows][intermediate]; none with experts
  StepArray<int32_t> tokens_;     // [rows]
  StepArray<int32_t> positions_;  // [rows]
  StepArray<KvSlot> slots_;       // [rows]
  StepArray<int32_t> wanted_;     // [max_logit_rows], of the rows
  std::unique_ptr<ExpertMlp> experts_;  // nullptr: there is one MLP for all tokens
  std::vector<AttentionSlice> slices_;  // one a slice of the batch
  std::vector<Slice> batch_;            // as SampledLast orders it

  // Serve the last of the wanted rows, up to max_logit_rows.
  StepArray<RowSampling> sampling_;
  StepResult<int32_t> sampled_;
  std::span<const int32_t> sampled_tokens_;

  StepGraphs graphs_;  // of steps that decode
};

}  // namespace kvcake
