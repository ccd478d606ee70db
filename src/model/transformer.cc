#include "model/transformer.h"

#include <cstring>

#include "base/check.h"
#include "model/identity.h"
#include "model/position.h"

namespace kvcake {
namespace {

AttentionShape AttentionShapeOf(const ModelConfig& c) {
  AttentionShape shape{.heads = c.heads, .kv_heads = c.kv_heads, .head_dim = c.head_dim};
  if (c.position == PositionKind::kAlibi) shape.alibi_slopes = AlibiSlopes(c.heads);
  return shape;
}

}  // namespace

KvLayout TransformerModel::LayoutFor(const ModelConfig& config, int chunk_tokens) {
  return {.layers = config.layers,
          .kv_heads = config.kv_heads,
          .head_dim = config.head_dim,
          .chunk_tokens = chunk_tokens};
}

Result<std::unique_ptr<TransformerModel>> TransformerModel::Create(
    const ModelConfig& config, const WeightSource& weights, const PagePool& pages,
    ThreadPool& threads, const TransformerOptions& options) {
  RETURN_IF_ERROR(CheckRunnable(config, "the model"));
  CHECK(pages.layout() == LayoutFor(config, pages.layout().chunk_tokens));
  if (pages.layout().chunk_tokens % 16 != 0) {
    return Fail(ErrorCode::kUnsupported, "chunks of {} tokens: choose a multiple of 16",
                pages.layout().chunk_tokens);
  }
  TransformerOptions resolved = options;
  if (resolved.path == NumericPath::kUnknown) resolved.path = BestPath();
  if (!PathAvailable(resolved.path)) {
    return Fail(ErrorCode::kUnsupported, "this CPU cannot run the numeric path {}",
                NumericPathName(resolved.path));
  }
  // Before the scratch, which a senseless configuration would make huge.
  RETURN_IF_ERROR(CheckWeights(config, weights));
  std::unique_ptr<TransformerModel> model(new TransformerModel(config, pages, threads, resolved));
  ASSIGN_OR_RETURN(model->weights_, LoadWeights(model->compute_, config, weights, options.weights));
  ASSIGN_OR_RETURN(const Digest digest, weights.digest());
  model->identity_ = MakeIdentity(config, pages.layout(), digest, options.weights);
  return model;
}

TransformerModel::TransformerModel(const ModelConfig& config, const PagePool& pages,
                                   ThreadPool& threads, const TransformerOptions& options)
    : config_(config),
      options_(options),
      pages_(pages),
      compute_(threads, options.path),
      qkv_shape_{config.heads, config.kv_heads, config.head_dim},
      inv_freq_(config.position == PositionKind::kRope
                    ? RopeInverseFrequencies(config.rope, config.head_dim)
                    : std::vector<float>(config.head_dim / 2)),
      attention_(compute_, AttentionShapeOf(config), pages),
      tokens_(options.max_batch_tokens),
      positions_(options.max_batch_tokens),
      slots_(options.max_batch_tokens) {
  const int64_t rows = options.max_batch_tokens;
  const auto floats = [rows](int64_t columns) { return Buffer(rows * columns * sizeof(float)); };
  x_ = floats(config.hidden_size);
  qkv_ = floats(qkv_size());
  rope_ = floats(config.head_dim);
  const int64_t logit_rows = options.max_logit_rows > 0 ? options.max_logit_rows : rows;
  logits_ = Buffer(logit_rows * config.vocab_size * sizeof(float));
  normed_ = ActivationBuffer(options.path, rows, config.hidden_size);
  attended_ = ActivationBuffer(options.path, rows, config.heads * config.head_dim);
  gated_ = ActivationBuffer(options.path, rows, config.intermediate_size);
  slices_.reserve(rows);
}

Result<std::span<const float>> TransformerModel::Forward(std::span<const Slice> batch) {
  int64_t rows = Gather(batch);
  Embed(rows);
  RopeTable(compute_, std::span(positions_).first(rows), inv_freq_, rope_.as<float>());
  float* x = x_.as<float>();
  const int64_t hidden = config_.hidden_size;
  LayerGate* gate = batch.empty() ? nullptr : batch[0].gate;
  for (int i = 0; i < config_.layers; ++i) {
    const LayerWeights& layer = weights_.layers[i];
    Normalize(layer.attention_norm, rows);
    MatMul(compute_, normed_.Rows(rows), layer.qkv, qkv_.as<float>(), qkv_size());
    RotateAndWriteKv(batch, i, rows);
    if (gate != nullptr) {
      RETURN_IF_ERROR(gate->AfterKv(i));
      RETURN_IF_ERROR(gate->BeforeAttention(i));
    }
    // After the last layer's keys and values, only rows whose logits are wanted go on.
    const bool last = i + 1 == config_.layers;
    if (last) rows = KeepLogitRows(batch);
    ListAttention(batch, last);
    attention_.Run(i, slices_, qkv_size(), attended_.Rows(rows));
    // In parallel, the MLP looks at the residual stream as attention found it.
    const bool parallel = config_.block != BlockKind::kSequential;
    if (parallel) Normalize(layer.mlp_norm, rows);
    MatMulAdd(compute_, attended_.Rows(rows), layer.o, x, hidden);
    if (!parallel) Normalize(layer.mlp_norm, rows);
    Mlp(layer, rows);
  }
  CHECK(rows * config_.vocab_size * sizeof(float) <= logits_.size());
  Normalize(weights_.final_norm, rows);
  MatMul(compute_, normed_.Rows(rows), head(), logits_.as<float>(), config_.vocab_size);
  return std::span<const float>(logits_.as<float>(), rows * config_.vocab_size);
}

// normed_ = the residual stream, normalized.
void TransformerModel::Normalize(const NormTensors& norm, int64_t rows) {
  const auto normalize = config_.norm == NormKind::kRms ? RmsNorm : LayerNorm;
  normalize(compute_, x_.as<float>(), norm.view(), normed_.Rows(rows));
}

// Adds the MLP of normed_ to the residual stream.
void TransformerModel::Mlp(const LayerWeights& layer, int64_t rows) {
  const auto up = config_.mlp == MlpKind::kSwiGlu ? MatMulSwiGlu : MatMulGelu;
  up(compute_, normed_.Rows(rows), layer.up, gated_.Rows(rows));
  MatMulAdd(compute_, gated_.Rows(rows), layer.down, x_.as<float>(), config_.hidden_size);
}

// Lays the slices' tokens one after the other, one row each; returns the rows.
int64_t TransformerModel::Gather(std::span<const Slice> batch) {
  int64_t rows = 0;
  for (const Slice& slice : batch) {
    const int64_t n = static_cast<int64_t>(slice.tokens.size()), end = slice.start + n;
    CHECK(n > 0 && rows + n <= options_.max_batch_tokens && slice.start >= 0);
    CHECK(end <= static_cast<int64_t>(slice.pages.size()) * layout().chunk_tokens);
    CHECK(slice.dense_keys <= static_cast<int64_t>(slice.pages.size()) * layout().chunk_tokens);
    CHECK(slice.gate == batch[0].gate);
    for (int64_t i = 0; i < n; ++i, ++rows) {
      tokens_[rows] = slice.tokens[i];
      positions_[rows] = static_cast<int32_t>(slice.start + i);
    }
  }
  return rows;
}

void TransformerModel::Embed(int64_t rows) {
  compute_.pool().ParallelFor(rows, [&](int64_t row, int) {
    weights_.embedding.CopyRow(tokens_[row], x_.as<float>() + row * config_.hidden_size);
  });
}

void TransformerModel::RotateAndWriteKv(std::span<const Slice> batch, int layer, int64_t rows) {
  const KvLayout& kv = layout();
  if (config_.qk_norm) {
    const LayerWeights& weights = weights_.layers[layer];
    NormHeads(compute_, qkv_shape_, weights.q_norm.view(), weights.k_norm.view(),
              std::span(qkv_.as<float>(), rows * qkv_size()));
  }
  int64_t row = 0;
  for (const Slice& slice : batch) {
    for (size_t i = 0; i < slice.tokens.size(); ++i, ++row) {
      if (!slice.write_kv) {
        slots_[row] = {};
        continue;
      }
      const int64_t position = positions_[row];
      uint16_t* slab = pages_.Slab(slice.pages[position / kv.chunk_tokens], layer);
      uint16_t* k = slab + position % kv.chunk_tokens * kv.head_dim;
      slots_[row] = {.k = k, .v = k + kv.plane_elements()};
    }
  }
  RopeAndStoreKv(compute_, qkv_shape_, qkv_.as<float>(), rope_.as<float>(),
                 std::span(slots_).first(rows),
                 static_cast<int64_t>(kv.chunk_tokens) * kv.head_dim);
}

// Moves the residual rows whose logits are wanted to the front, in order; returns how many.
int64_t TransformerModel::KeepLogitRows(std::span<const Slice> batch) {
  const int64_t hidden = config_.hidden_size;
  float* x = x_.as<float>();
  int64_t row = 0, kept = 0;
  for (const Slice& slice : batch) {
    const int64_t n = static_cast<int64_t>(slice.tokens.size());
    const int64_t wanted = WantedRows(slice);
    row += n;
    std::memmove(x + kept * hidden, x + (row - wanted) * hidden, wanted * hidden * sizeof(float));
    kept += wanted;
  }
  return kept;
}

// Lists what attention computes: every row, or only those whose logits are wanted.
void TransformerModel::ListAttention(std::span<const Slice> batch, bool wanted_only) {
  slices_.clear();
  int64_t row = 0, out_row = 0;
  for (const Slice& slice : batch) {
    const int64_t n = static_cast<int64_t>(slice.tokens.size());
    const int64_t rows = wanted_only ? WantedRows(slice) : n;
    row += n;
    if (rows == 0) continue;
    slices_.push_back({.q = qkv_.as<float>() + (row - rows) * qkv_size(),
                       .rows = rows,
                       .start = slice.start + n - rows,
                       .pages = slice.pages,
                       .out_row = out_row,
                       .dense_keys = slice.dense_keys});
    out_row += rows;
  }
}

int64_t TransformerModel::WantedRows(const Slice& slice) {
  switch (slice.logits) {
    case Slice::Logits::kNone:
      return 0;
    case Slice::Logits::kLast:
      return 1;
    case Slice::Logits::kAll:
      return static_cast<int64_t>(slice.tokens.size());
  }
  return 0;
}

}  // namespace kvcake
