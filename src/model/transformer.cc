#include "model/transformer.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

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

// Whether every row of every matrix is short enough for products of integers.
Status CheckInt8(const ModelConfig& c) {
  for (const auto& [field, size] :
       {std::pair("hidden_size", int64_t{c.hidden_size}),
        std::pair("intermediate_size", int64_t{c.intermediate_size}),
        std::pair("num_attention_heads x head_dim", int64_t{c.heads} * c.head_dim)}) {
    if (size <= kInt8DepthMax) continue;
    return Fail(ErrorCode::kUnsupported,
                "the model: {} is {}, but --weights int8 takes up to {}: use bf16", field, size,
                kInt8DepthMax);
  }
  return {};
}

// Each graph has hundreds of kernels.
constexpr size_t kGraphsMax = 128;

// Steps that come again, and are short enough for the host to be in the way: every slice is one
// token, and no gate waits between the layers.
bool Decodes(std::span<const Slice> batch) {
  constexpr size_t kRowsMax = 256;
  return !batch.empty() && batch.size() <= kRowsMax &&
         std::ranges::all_of(batch, [](const Slice& slice) {
           return slice.tokens.size() == 1 && slice.gate == nullptr;
         });
}

}  // namespace

KvLayout TransformerModel::LayoutFor(const ModelConfig& config, int chunk_tokens) {
  return {.layers = config.layers,
          .kv_heads = config.kv_heads,
          .head_dim = config.head_dim,
          .chunk_tokens = chunk_tokens};
}

uint64_t TransformerModel::MemoryFor(const ModelConfig& config, const TransformerOptions& options) {
  constexpr uint64_t kPlans = 160 << 20;  // attention's partial sums and plans, and what is small
  const auto rows = static_cast<uint64_t>(options.max_batch_tokens);
  const uint64_t logit_rows = options.max_logit_rows > 0 ? options.max_logit_rows : rows;
  const uint64_t heads = static_cast<uint64_t>(config.heads) * config.head_dim;
  const uint64_t kv_heads = static_cast<uint64_t>(config.kv_heads) * config.head_dim;
  const uint64_t floats = rows * (config.hidden_size + heads + 2 * kv_heads + config.head_dim) +
                          logit_rows * (config.hidden_size + config.vocab_size);
  const uint64_t activations = rows * (config.hidden_size + heads);
  const uint64_t mlp = config.experts.count > 0
                           ? ExpertMlp::MemoryFor(config, rows, options.path)
                           : rows * config.intermediate_size * ActivationBytes(options.path);
  return config.parameters() * (options.weights == WeightFormat::kInt8 ? 1 : 2) +
         floats * sizeof(float) + activations * ActivationBytes(options.path) + mlp + kPlans;
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
  if (OnCuda(resolved.path) && config.experts.count > 0) {
    return Fail(ErrorCode::kUnsupported,
                "--backend cuda runs no mixtures of experts, as of {}: use the CPU", config.family);
  }
  RETURN_IF_ERROR(CheckPath(resolved.path));
  if (OnCuda(resolved.path) && options.weights == WeightFormat::kInt8) {
    return Fail(ErrorCode::kUnsupported, "--backend cuda has no --weights int8: use bf16");
  }
  if (options.weights == WeightFormat::kInt8) RETURN_IF_ERROR(CheckInt8(config));
  RETURN_IF_ERROR(CheckAttentionBackend(options.attention_backend, resolved.path, config.head_dim));
  // Before the scratch, which a senseless configuration would make huge.
  RETURN_IF_ERROR(CheckWeights(config, weights));
  std::unique_ptr<TransformerModel> model(new TransformerModel(config, pages, threads, resolved));
  ASSIGN_OR_RETURN(model->weights_, LoadWeights(model->compute_, config, weights, options.weights));
  ASSIGN_OR_RETURN(const Digest digest, weights.digest());
  model->identity_ = MakeIdentity(config, pages.layout(), digest, options.weights,
                                  kArithmeticRevision, options.lossy_lineage);
  return model;
}

TransformerModel::TransformerModel(const ModelConfig& config, const PagePool& pages,
                                   ThreadPool& threads, const TransformerOptions& options)
    : config_(config),
      options_(options),
      pages_(pages),
      compute_(threads, options.path),
      qkv_shape_{config.heads, config.kv_heads, config.head_dim},
      inv_freq_(compute_.Put(config.position == PositionKind::kRope
                                 ? RopeInverseFrequencies(config.rope, config.head_dim)
                                 : std::vector<float>(config.head_dim / 2))),
      attention_(Attention::Create(
          compute_, AttentionShapeOf(config), pages,
          {options.max_batch_tokens,
           options.max_slices > 0 ? options.max_slices : options.max_batch_tokens},
          options.attention_backend)),
      every_row_(attention_->NewPlan()),
      wanted_rows_(attention_->NewPlan()),
      graphs_(compute_, options.enforce_eager ? 0 : kGraphsMax) {
  const int64_t rows = options.max_batch_tokens;
  const int64_t logit_rows = options.max_logit_rows > 0 ? options.max_logit_rows : rows;
  const Memory memory = MemoryOf(options.path);
  const auto floats = [memory](int64_t rows, int64_t columns) {
    return Buffer(rows * columns * sizeof(float), memory);
  };
  x_ = floats(rows, config.hidden_size);
  wanted_x_ = floats(logit_rows, config.hidden_size);
  qkv_ = floats(rows, qkv_size());
  rope_ = floats(rows, config.head_dim);
  logits_ = StepResult<float>(compute_, logit_rows * config.vocab_size);
  normed_ = ActivationBuffer(options.path, rows, config.hidden_size);
  attended_ = ActivationBuffer(options.path, rows, config.heads * config.head_dim);
  if (config.experts.count > 0) {
    experts_ = std::make_unique<ExpertMlp>(compute_, config, rows);
  } else {
    gated_ = ActivationBuffer(options.path, rows, config.intermediate_size);
  }
  tokens_ = StepArray<int32_t>(compute_, rows);
  positions_ = StepArray<int32_t>(compute_, rows);
  slots_ = StepArray<KvSlot>(compute_, rows);
  wanted_ = StepArray<int32_t>(compute_, logit_rows);
  sampling_ = StepArray<RowSampling>(compute_, logit_rows);
  sampled_ = StepResult<int32_t>(compute_, logit_rows);
  batch_.reserve(rows);
  slices_.reserve(rows);
}

Result<std::span<const float>> TransformerModel::Forward(std::span<const Slice> slices) {
  const std::span<const Slice> batch = SampledLast(slices);
  const Rows step = Gather(batch);
  PlanAttention(batch, /*wanted_only=*/false);
  PlanAttention(batch, /*wanted_only=*/true);
  Status status;
  const auto layers = [&] { status = Layers(step, batch.empty() ? nullptr : batch[0].gate); };
  if (Decodes(batch)) {
    graphs_.Run(GraphKey(step), layers);
  } else {
    layers();
  }
  if (!status) {
    compute_.Wait();  // what was enqueued reads the step's arrays
    return tl::unexpected<Error>(status.error());
  }
  return Fetch(step);
}

// Nothing that kernels are given ever moves.
StepGraphs::Key TransformerModel::GraphKey(const Rows& step) const {
  StepGraphs::Key key = {step.tokens.size(), step.wanted.size(), step.sampling.size()};
  for (const AttentionPlan* plan : {every_row_.get(), wanted_rows_.get()}) {
    std::ranges::copy(plan->launches(), std::back_inserter(key));
  }
  return key;
}

// From the step's arrays to logits_. It enqueues, and waits only where a gate does: without one it
// can be replayed.
Status TransformerModel::Layers(const Rows& step, LayerGate* gate) {
  const int64_t hidden = config_.hidden_size;
  int64_t rows = std::ssize(step.tokens);
  float* x = x_.as<float>();
  Embed(compute_, weights_.embedding, step.tokens, x);
  RopeTable(compute_, step.positions,
            std::span<const float>(inv_freq_.as<float>(), config_.head_dim / 2),
            static_cast<float>(config_.rope.attention_factor), rope_.as<float>());
  for (int i = 0; i < config_.layers; ++i) {
    const LayerWeights& layer = weights_.layers[i];
    Qkv(layer, Normalize(layer.attention_norm, x, rows), step.slots, i);
    if (gate != nullptr) {
      RETURN_IF_ERROR(gate->AfterKv(i));
      RETURN_IF_ERROR(gate->BeforeAttention(i));
    }
    // After the last layer's keys and values, only rows whose logits are wanted go on.
    const bool last = i + 1 == config_.layers;
    if (last) {
      rows = std::ssize(step.wanted);
      TakeRows(compute_, x, step.wanted, hidden, wanted_x_.as<float>());
      x = wanted_x_.as<float>();
    }
    attention_->Run(last ? *wanted_rows_ : *every_row_, i, qkv_size(), attended_.Rows(rows));
    // In parallel, the MLP looks at the residual stream as attention found it.
    const bool parallel = config_.block != BlockKind::kSequential;
    Activations normed;
    if (parallel) normed = Normalize(layer.mlp_norm, x, rows);
    MatMulAdd(compute_, attended_.Rows(rows), layer.o, x, hidden);
    if (!parallel) normed = Normalize(layer.mlp_norm, x, rows);
    Mlp(layer, normed, x);
  }
  const int64_t vocab = config_.vocab_size, returned = rows - std::ssize(step.sampling);
  MatMul(compute_, Normalize(weights_.final_norm, x, rows), head(), logits_.kernels(), vocab);
  SampleTokens(compute_,
               {.data = logits_.kernels() + returned * vocab, .vocab = vocab, .stride = vocab},
               step.sampling, sampled_.kernels());
  return {};
}

// x, normalized, for products until the next call; those of sequential blocks enter some before x
// changes.
Activations TransformerModel::Normalize(const NormTensors& norm, const float* x, int64_t rows) {
  const Activations normed = normed_.Rows(rows);
  if (config_.norm == NormKind::kRms && config_.block == BlockKind::kSequential) {
    return LazyRmsNorm(compute_, x, norm.view(), normed);
  }
  (config_.norm == NormKind::kRms ? RmsNorm : LayerNorm)(compute_, x, norm.view(), normed);
  return normed;
}

// Queries to qkv_, keys and values to their pages.
void TransformerModel::Qkv(const LayerWeights& layer, const Activations& normed,
                           std::span<const KvSlot> slots, int index) {
  const KvLayout& kv = layout();
  const KvStride stride{.layer = index * static_cast<int64_t>(kv.slab_bytes() / sizeof(uint16_t)),
                        .head = static_cast<int64_t>(kv.chunk_tokens) * kv.head_dim};
  float* const qkv = qkv_.as<float>();
  if (!config_.qk_norm) {
    return MatMulQkv(compute_, normed, layer.qkv, qkv_shape_, qkv, rope_.as<float>(), slots,
                     stride);
  }
  MatMul(compute_, normed, layer.qkv, qkv, qkv_size());
  NormHeads(compute_, qkv_shape_, layer.q_norm.view(), layer.k_norm.view(),
            std::span(qkv, slots.size() * qkv_size()));
  RopeAndStoreKv(compute_, qkv_shape_, qkv, rope_.as<float>(), slots, stride);
}

// Adds the MLP of `normed` to the residual stream x.
void TransformerModel::Mlp(const LayerWeights& layer, const Activations& normed, float* x) {
  if (experts_) return experts_->Add(layer, normed, x);
  const auto up = config_.mlp == MlpKind::kSwiGlu ? MatMulSwiGlu : MatMulGelu;
  const Activations gated = gated_.Rows(normed.rows);
  up(compute_, normed, layer.mlps[0].up, gated);
  MatMulAdd(compute_, gated, layer.mlps[0].down, x, config_.hidden_size);
}

// The wanted rows' logits, and the tokens of those at their end that are sampled, once all of the
// step has been done.
std::span<const float> TransformerModel::Fetch(const Rows& step) {
  const int64_t sampled = std::ssize(step.sampling);
  const int64_t returned = std::ssize(step.wanted) - sampled;
  const std::span logits = logits_.Fetch(compute_, returned * config_.vocab_size);
  sampled_tokens_ = sampled_.Fetch(compute_, sampled);
  compute_.Wait();
  return logits;
}

// So that the rows of either kind lie together, and each kind in the slices' order.
std::span<const Slice> TransformerModel::SampledLast(std::span<const Slice> slices) {
  batch_.clear();
  for (const bool sampled : {false, true}) {
    for (const Slice& slice : slices) {
      if (slice.sampling.has_value() == sampled) batch_.push_back(slice);
    }
  }
  return batch_;
}

// Lays the slices' tokens one after the other, one row each.
TransformerModel::Rows TransformerModel::Gather(std::span<const Slice> batch) {
  const KvLayout& kv = layout();
  const std::span tokens = tokens_.host(), positions = positions_.host(), wanted = wanted_.host();
  const std::span slots = slots_.host();
  const std::span sampling = sampling_.host();
  size_t row = 0, wanted_rows = 0, sampled_rows = 0;
  for (const Slice& slice : batch) {
    const int64_t n = std::ssize(slice.tokens), end = slice.start + n;
    CHECK(n > 0 && row + n <= tokens.size() && slice.start >= 0);
    CHECK(end <= std::ssize(slice.pages) * kv.chunk_tokens);
    CHECK(slice.dense_keys <= std::ssize(slice.pages) * kv.chunk_tokens);
    CHECK(slice.gate == batch[0].gate);
    CHECK(slice.gate == nullptr || slice.start >= batch[0].start);
    CHECK(wanted_rows + WantedRows(slice) <= wanted.size());
    CHECK(!slice.sampling || slice.logits == Slice::Logits::kLast);
    if (slice.sampling) sampling[sampled_rows++] = *slice.sampling;
    for (int64_t i = 0; i < n; ++i, ++row) {
      const int64_t position = slice.start + i;
      CHECK(slice.tokens[i] >= 0 && slice.tokens[i] < config_.vocab_size);
      tokens[row] = slice.tokens[i];
      positions[row] = static_cast<int32_t>(position);
      slots[row] = {};
      if (slice.write_kv) {
        uint16_t* k = pages_.Slab(slice.pages[position / kv.chunk_tokens], 0) +
                      position % kv.chunk_tokens * kv.head_dim;
        slots[row] = {.k = k, .v = k + kv.plane_elements()};
      }
      if (n - i <= WantedRows(slice)) wanted[wanted_rows++] = static_cast<int32_t>(row);
    }
  }
  return {.tokens = tokens_.Commit(compute_, row),
          .positions = positions_.Commit(compute_, row),
          .slots = slots_.Commit(compute_, row),
          .wanted = wanted_.Commit(compute_, wanted_rows),
          .sampling = sampling_.Commit(compute_, sampled_rows)};
}

// Every row, or only those whose logits are wanted.
void TransformerModel::PlanAttention(std::span<const Slice> batch, bool wanted_only) {
  slices_.clear();
  int64_t row = 0, out_row = 0;
  for (const Slice& slice : batch) {
    const int64_t n = std::ssize(slice.tokens);
    const int64_t rows = wanted_only ? WantedRows(slice) : n;
    row += n;
    if (rows == 0) continue;
    // A gate's slices are of one prompt: an earlier one writes keys before a later one's start.
    const int written_from = slice.gate != nullptr ? batch.front().start : slice.start;
    slices_.push_back({.q = qkv_.as<float>() + (row - rows) * qkv_size(),
                       .rows = rows,
                       .start = slice.start + n - rows,
                       .old_keys = written_from,
                       .pages = slice.pages,
                       .out_row = out_row,
                       .dense_keys = slice.dense_keys});
    out_row += rows;
  }
  (wanted_only ? wanted_rows_ : every_row_)->Set(slices_);
}

int64_t TransformerModel::WantedRows(const Slice& slice) {
  switch (slice.logits) {
    case Slice::Logits::kNone:
      return 0;
    case Slice::Logits::kLast:
      return 1;
    case Slice::Logits::kAll:
      return std::ssize(slice.tokens);
  }
  return 0;
}

}  // namespace kvcake
