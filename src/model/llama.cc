#include "model/llama.h"

#include <cmath>
#include <cstring>
#include <numbers>

#include "base/check.h"
#include "ops/bf16.h"

namespace kvcake {
namespace {

WeightType TypeOf(DType dtype) {
  switch (dtype) {
    case DType::kBf16:
      return WeightType::kBf16;
    case DType::kF16:
      return WeightType::kF16;
    case DType::kF32:
      return WeightType::kF32;
  }
  return WeightType::kF32;
}

Result<WeightRows> GetMatrix(const WeightSource& weights, const std::string& name, int64_t rows,
                             int64_t columns) {
  ASSIGN_OR_RETURN(TensorView tensor, weights.get(name, std::array{rows, columns}));
  return WeightRows{tensor.bytes.data(), TypeOf(tensor.dtype), rows};
}

Result<std::vector<float>> GetVector(const WeightSource& weights, const std::string& name,
                                     int64_t size) {
  ASSIGN_OR_RETURN(TensorView tensor, weights.get(name, std::array{size}));
  std::vector<float> values(size);
  for (int64_t i = 0; i < size; ++i) {
    if (tensor.dtype == DType::kF32) {
      std::memcpy(&values[i], tensor.bytes.data() + i * sizeof(float), sizeof(float));
      continue;
    }
    uint16_t half;
    std::memcpy(&half, tensor.bytes.data() + i * sizeof(half), sizeof(half));
    values[i] = tensor.dtype == DType::kBf16 ? Bf16ToF32(half) : F16ToF32(half);
  }
  return values;
}

Status CheckSupported(const ModelConfig& c) {
  const auto require = [](bool ok, const char* what, int value) -> Status {
    if (ok) return {};
    return Fail(ErrorCode::kUnsupported, "{} is {}; kvcake's kernels cannot run that", what, value);
  };
  RETURN_IF_ERROR(require(c.hidden_size > 0 && c.hidden_size % 16 == 0,
                          "hidden_size (a multiple of 16)", c.hidden_size));
  RETURN_IF_ERROR(require(c.intermediate_size > 0 && c.intermediate_size % 16 == 0,
                          "intermediate_size (a multiple of 16)", c.intermediate_size));
  RETURN_IF_ERROR(
      require(c.head_dim > 0 && c.head_dim % 16 == 0 && c.head_dim <= kAttentionHeadDimMax,
              "head_dim (a multiple of 16, at most 256)", c.head_dim));
  RETURN_IF_ERROR(require(c.kv_heads > 0 && c.heads > 0 && c.heads % c.kv_heads == 0 &&
                              c.heads / c.kv_heads <= kAttentionGroupMax,
                          "num_attention_heads (1 to 96 for each key-value head)", c.heads));
  return require(c.layers > 0 && c.vocab_size > 0, "num_hidden_layers", c.layers);
}

const char* RopeKindName(RopeConfig::Kind kind) {
  switch (kind) {
    case RopeConfig::Kind::kPlain:
      return "plain";
    case RopeConfig::Kind::kLinear:
      return "linear";
    case RopeConfig::Kind::kLlama3:
      return "llama3";
  }
  return "";
}

}  // namespace

std::vector<float> RopeInverseFrequencies(const RopeConfig& rope, int head_dim) {
  std::vector<float> inv_freq(head_dim / 2);
  for (int i = 0; i < head_dim / 2; ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(head_dim);
    double f = 1.0f / static_cast<float>(std::pow(rope.theta, exponent));
    if (rope.kind == RopeConfig::Kind::kLinear) f /= rope.factor;
    if (rope.kind == RopeConfig::Kind::kLlama3) {
      // Long wavelengths are stretched, short ones kept, those between are blended.
      const double wavelength = 2 * std::numbers::pi / f, old = rope.original_max_positions;
      if (wavelength > old / rope.low_freq_factor) {
        f /= rope.factor;
      } else if (wavelength >= old / rope.high_freq_factor) {
        const double smooth = (old / wavelength - rope.low_freq_factor) /
                              (rope.high_freq_factor - rope.low_freq_factor);
        f = (1 - smooth) * f / rope.factor + smooth * f;
      }
    }
    inv_freq[i] = static_cast<float>(f);
  }
  return inv_freq;
}

WeightSource WeightSource::FromFiles(const TensorFiles& files) {
  return {.get = [&files](const std::string& name,
                          std::span<const int64_t> shape) { return files.Get(name, shape); },
          .digest = WeightsDigest(files)};
}

KvLayout LlamaModel::LayoutFor(const ModelConfig& config, int chunk_tokens) {
  return {.layers = config.layers,
          .kv_heads = config.kv_heads,
          .head_dim = config.head_dim,
          .chunk_tokens = chunk_tokens};
}

Result<std::unique_ptr<LlamaModel>> LlamaModel::Create(const ModelConfig& config,
                                                       const WeightSource& weights,
                                                       const PagePool& pages, ThreadPool& threads,
                                                       const LlamaOptions& options) {
  RETURN_IF_ERROR(CheckSupported(config));
  CHECK(pages.layout() == LayoutFor(config, pages.layout().chunk_tokens));
  if (pages.layout().chunk_tokens % 16 != 0) {
    return Fail(ErrorCode::kUnsupported, "chunks of {} tokens: choose a multiple of 16",
                pages.layout().chunk_tokens);
  }
  LlamaOptions resolved = options;
  if (resolved.path == NumericPath::kUnknown) resolved.path = BestPath();
  if (!PathAvailable(resolved.path)) {
    return Fail(ErrorCode::kUnsupported, "this CPU cannot run the numeric path {}",
                NumericPathName(resolved.path));
  }
  std::unique_ptr<LlamaModel> model(new LlamaModel(config, pages, threads, resolved));
  RETURN_IF_ERROR(model->LoadWeights(weights));
  model->MakeIdentity(weights.digest);
  return model;
}

LlamaModel::LlamaModel(const ModelConfig& config, const PagePool& pages, ThreadPool& threads,
                       const LlamaOptions& options)
    : config_(config),
      options_(options),
      pages_(pages),
      compute_(threads, options.path),
      qkv_shape_{config.heads, config.kv_heads, config.head_dim},
      inv_freq_(RopeInverseFrequencies(config.rope, config.head_dim)),
      attention_(compute_, {config.heads, config.kv_heads, config.head_dim}, pages),
      tokens_(options.max_batch_tokens),
      positions_(options.max_batch_tokens),
      slots_(options.max_batch_tokens) {
  const int64_t rows = options.max_batch_tokens;
  const auto floats = [rows](int64_t columns) { return Buffer(rows * columns * sizeof(float)); };
  x_ = floats(config.hidden_size);
  qkv_ = floats(qkv_size());
  rope_ = floats(config.head_dim);
  logits_ = floats(config.vocab_size);
  normed_ = ActivationBuffer(options.path, rows, config.hidden_size);
  attended_ = ActivationBuffer(options.path, rows, config.heads * config.head_dim);
  gated_ = ActivationBuffer(options.path, rows, config.intermediate_size);
  slices_.reserve(rows);
}

Status LlamaModel::LoadWeights(const WeightSource& weights) {
  const int64_t hidden = config_.hidden_size, vocab = config_.vocab_size;
  ASSIGN_OR_RETURN(WeightRows embedding,
                   GetMatrix(weights, "model.embed_tokens.weight", vocab, hidden));
  embedding_ = PackedMatrix(compute_, std::span(&embedding, 1), hidden);
  if (!config_.tie_embeddings) {
    ASSIGN_OR_RETURN(WeightRows head, GetMatrix(weights, "lm_head.weight", vocab, hidden));
    lm_head_ = PackedMatrix(compute_, std::span(&head, 1), hidden);
  }
  ASSIGN_OR_RETURN(norm_, GetVector(weights, "model.norm.weight", hidden));
  layers_.resize(config_.layers);
  for (int i = 0; i < config_.layers; ++i) RETURN_IF_ERROR(LoadLayer(weights, i));
  return {};
}

Status LlamaModel::LoadLayer(const WeightSource& weights, int index) {
  Layer& layer = layers_[index];
  const std::string prefix = fmt::format("model.layers.{}.", index);
  const int64_t hidden = config_.hidden_size, intermediate = config_.intermediate_size;
  const int64_t q_rows = config_.heads * config_.head_dim;
  const int64_t kv_rows = config_.kv_heads * config_.head_dim;
  const auto get = [&](const char* name, int64_t rows, int64_t columns) {
    return GetMatrix(weights, prefix + name, rows, columns);
  };
  ASSIGN_OR_RETURN(layer.input_norm, GetVector(weights, prefix + "input_layernorm.weight", hidden));
  ASSIGN_OR_RETURN(WeightRows q, get("self_attn.q_proj.weight", q_rows, hidden));
  ASSIGN_OR_RETURN(WeightRows k, get("self_attn.k_proj.weight", kv_rows, hidden));
  ASSIGN_OR_RETURN(WeightRows v, get("self_attn.v_proj.weight", kv_rows, hidden));
  layer.qkv = PackedMatrix(compute_, std::array{q, k, v}, hidden);
  ASSIGN_OR_RETURN(WeightRows o, get("self_attn.o_proj.weight", hidden, q_rows));
  layer.o = PackedMatrix(compute_, std::span(&o, 1), q_rows);
  ASSIGN_OR_RETURN(layer.post_attention_norm,
                   GetVector(weights, prefix + "post_attention_layernorm.weight", hidden));
  ASSIGN_OR_RETURN(WeightRows gate, get("mlp.gate_proj.weight", intermediate, hidden));
  ASSIGN_OR_RETURN(WeightRows up, get("mlp.up_proj.weight", intermediate, hidden));
  layer.gate_up = PackedMatrix::GateUp(compute_, gate, up, hidden);
  ASSIGN_OR_RETURN(WeightRows down, get("mlp.down_proj.weight", hidden, intermediate));
  layer.down = PackedMatrix(compute_, std::span(&down, 1), intermediate);
  return {};
}

// Numbers are printed exactly (hexadecimal floats), so that equal text means equal numbers.
void LlamaModel::MakeIdentity(const Digest& weights_digest) {
  const auto exact = [](double x) { return fmt::format("{:a}", x); };
  const RopeConfig& rope = config_.rope;
  identity_.Add("arch", "llama")
      .Add("layers", config_.layers)
      .Add("hidden", config_.hidden_size)
      .Add("heads", config_.heads)
      .Add("kv_heads", config_.kv_heads)
      .Add("head_dim", config_.head_dim)
      .Add("intermediate", config_.intermediate_size)
      .Add("vocab", config_.vocab_size)
      .Add("rms_norm_eps", exact(config_.rms_norm_eps))
      .Add("rope", RopeKindName(rope.kind))
      .Add("rope_theta", exact(rope.theta));
  if (rope.kind != RopeConfig::Kind::kPlain) identity_.Add("rope_factor", exact(rope.factor));
  if (rope.kind == RopeConfig::Kind::kLlama3) {
    identity_.Add("rope_low_freq_factor", exact(rope.low_freq_factor))
        .Add("rope_high_freq_factor", exact(rope.high_freq_factor))
        .Add("rope_original_max_positions", rope.original_max_positions);
  }
  identity_.Add("weights_digest", ToHex(weights_digest))
      .Add("weights", "bf16")
      .Add("kv", "bf16")
      .Add("chunk_tokens", layout().chunk_tokens)
      .Add("layout", "v1")
      .Add("shard", "all");
}

Result<std::span<const float>> LlamaModel::Forward(std::span<const Slice> batch) {
  int64_t rows = Gather(batch);
  Embed(rows);
  RopeTable(compute_, std::span(positions_).first(rows), inv_freq_, rope_.as<float>());
  float* x = x_.as<float>();
  const int64_t hidden = config_.hidden_size;
  const float eps = static_cast<float>(config_.rms_norm_eps);
  LayerGate* gate = batch.empty() ? nullptr : batch[0].gate;
  for (int i = 0; i < config_.layers; ++i) {
    const Layer& layer = layers_[i];
    RmsNorm(compute_, x, layer.input_norm.data(), eps, normed_.Rows(rows));
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
    MatMulAdd(compute_, attended_.Rows(rows), layer.o, x, hidden);
    RmsNorm(compute_, x, layer.post_attention_norm.data(), eps, normed_.Rows(rows));
    MatMulSwiGlu(compute_, normed_.Rows(rows), layer.gate_up, gated_.Rows(rows));
    MatMulAdd(compute_, gated_.Rows(rows), layer.down, x, hidden);
  }
  RmsNorm(compute_, x, norm_.data(), eps, normed_.Rows(rows));
  MatMul(compute_, normed_.Rows(rows), lm_head(), logits_.as<float>(), config_.vocab_size);
  return std::span<const float>(logits_.as<float>(), rows * config_.vocab_size);
}

// Lays the slices' tokens one after the other, one row each; returns the rows.
int64_t LlamaModel::Gather(std::span<const Slice> batch) {
  int64_t rows = 0;
  for (const Slice& slice : batch) {
    const int64_t n = static_cast<int64_t>(slice.tokens.size()), end = slice.start + n;
    CHECK(n > 0 && rows + n <= options_.max_batch_tokens && slice.start >= 0);
    CHECK(end <= static_cast<int64_t>(slice.pages.size()) * layout().chunk_tokens);
    CHECK(slice.gate == nullptr || batch.size() == 1);
    for (int64_t i = 0; i < n; ++i, ++rows) {
      tokens_[rows] = slice.tokens[i];
      positions_[rows] = static_cast<int32_t>(slice.start + i);
    }
  }
  return rows;
}

void LlamaModel::Embed(int64_t rows) {
  compute_.pool().ParallelFor(rows, [&](int64_t row, int) {
    embedding_.CopyRow(tokens_[row], x_.as<float>() + row * config_.hidden_size);
  });
}

void LlamaModel::RotateAndWriteKv(std::span<const Slice> batch, int layer, int64_t rows) {
  const KvLayout& kv = layout();
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
int64_t LlamaModel::KeepLogitRows(std::span<const Slice> batch) {
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
void LlamaModel::ListAttention(std::span<const Slice> batch, bool wanted_only) {
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
                       .out_row = out_row});
    out_row += rows;
  }
}

int64_t LlamaModel::WantedRows(const Slice& slice) {
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
