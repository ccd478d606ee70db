#include "model/weights.h"

#include <array>
#include <cstring>
#include <list>
#include <memory>
#include <set>

#include "base/bf16.h"
#include "model/tensor_list.h"
#include "model/tensor_scan.h"

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

int64_t ElementBytes(WeightType type) { return type == WeightType::kF32 ? 4 : 2; }

Result<std::vector<float>> GetVector(const WeightSource& source, const std::string& name,
                                     int64_t size) {
  ASSIGN_OR_RETURN(TensorView tensor, source.get(name, std::array{size}));
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

// Rows [first, first + rows) of `all`, whose rows have k elements.
WeightRows Part(const WeightRows& all, int64_t first, int64_t rows, int64_t k) {
  return {.data = static_cast<const std::byte*>(all.data) + first * k * ElementBytes(all.type),
          .type = all.type,
          .rows = rows,
          .bias = all.bias == nullptr ? nullptr : all.bias + first};
}

// The fused projection's rows in another order: all queries, all keys, all values.
std::vector<WeightRows> SplitFused(const ModelConfig& c, const WeightRows& all) {
  const int64_t group = c.heads / c.kv_heads, dim = c.head_dim;
  std::vector<WeightRows> parts;
  const auto take = [&](int64_t first_head, int64_t heads) {
    for (int64_t kv = 0; kv < c.kv_heads; ++kv) {
      const int64_t head = kv * (group + 2) + first_head;
      parts.push_back(Part(all, head * dim, heads * dim, c.hidden_size));
    }
  };
  take(0, group);
  take(group, 1);
  take(group + 1, 1);
  return parts;
}

// Loads one layer, or what is outside them. Biases live as long as it does: packing copies them.
class Loader {
 public:
  Loader(const Compute& compute, const ModelConfig& config, const WeightSource& source,
         WeightFormat format)
      : compute_(compute), config_(config), source_(source), format_(format) {}

  Result<LayerWeights> Layer(int index) {
    const ModelConfig& c = config_;
    const int64_t hidden = c.hidden_size;
    const int64_t query = static_cast<int64_t>(c.heads) * c.head_dim;
    const auto name = [&](std::string_view part) { return LayerTensor(c, index, part); };
    LayerWeights layer;
    ASSIGN_OR_RETURN(layer.attention_norm, Norm(name(c.names.attention_norm), hidden, c.norm));
    ASSIGN_OR_RETURN(const std::vector<WeightRows> qkv, Qkv(index));
    layer.qkv = PackedMatrix(compute_, qkv, hidden, format_);
    if (c.qk_norm) {
      ASSIGN_OR_RETURN(layer.q_norm, Norm(name(c.names.q_norm), c.head_dim, NormKind::kRms));
      ASSIGN_OR_RETURN(layer.k_norm, Norm(name(c.names.k_norm), c.head_dim, NormKind::kRms));
    }
    ASSIGN_OR_RETURN(const WeightRows o, Linear(name(c.names.o), hidden, query, c.o_bias));
    layer.o = PackedMatrix(compute_, std::span(&o, 1), query, format_);
    const bool shared = c.block == BlockKind::kParallel;
    ASSIGN_OR_RETURN(layer.mlp_norm, Norm(name(shared ? c.names.attention_norm : c.names.mlp_norm),
                                          hidden, c.norm));
    if (c.experts.count > 0) {
      ASSIGN_OR_RETURN(const WeightRows router,
                       Linear(name(c.names.router), c.experts.count, hidden, false));
      layer.router = PackedMatrix(compute_, std::span(&router, 1), hidden);
    }
    for (int i = 0; i < MlpsOf(c); ++i) {
      ASSIGN_OR_RETURN(layer.mlps.emplace_back(), Mlp(index, i));
    }
    return layer;
  }

  // What is tied in the configuration may not be in the files; Hugging Face believes the files.
  Status Embeddings(ModelWeights* model) {
    const int64_t vocab = config_.vocab_size, hidden = config_.hidden_size;
    const auto head =
        source_.get(std::string(config_.names.head) + ".weight", std::array{vocab, hidden});
    auto embedding =
        source_.get(std::string(config_.names.embedding) + ".weight", std::array{vocab, hidden});
    const auto pack = [&](const TensorView& tensor) {
      const WeightRows rows{tensor.bytes.data(), TypeOf(tensor.dtype), vocab};
      return PackedMatrix(compute_, std::span(&rows, 1), hidden, format_);
    };
    if (!embedding) {
      if (!config_.tie_embeddings || !head) return tl::unexpected(embedding.error());
      embedding = head;
    }
    model->embedding = pack(*embedding);
    if (!head) {
      if (config_.tie_embeddings && head.error().code == ErrorCode::kNotFound) return {};
      return tl::unexpected(head.error());
    }
    const bool same =
        head->dtype == embedding->dtype &&
        std::memcmp(head->bytes.data(), embedding->bytes.data(), head->bytes.size()) == 0;
    if (!config_.tie_embeddings || !same) model->head = pack(*head);
    return {};
  }

  Result<NormTensors> Norm(const std::string& name, int64_t size, NormKind kind) const {
    ASSIGN_OR_RETURN(const auto weight, GetVector(source_, name + ".weight", size));
    NormTensors norm{
        .weight = compute_.Put(weight), .bias = {}, .eps = static_cast<float>(config_.norm_eps)};
    if (kind == NormKind::kLayer) {
      ASSIGN_OR_RETURN(const auto bias, GetVector(source_, name + ".bias", size));
      norm.bias = compute_.Put(bias);
    }
    return norm;
  }

 private:
  Result<MlpWeights> Mlp(int layer, int expert) {
    const ModelConfig& c = config_;
    const int64_t hidden = c.hidden_size, inner = c.intermediate_size;
    const auto linear = [&](std::string_view part, int64_t rows, int64_t columns) {
      return Linear(MlpTensor(c, layer, expert, part), rows, columns, c.mlp_bias);
    };
    MlpWeights mlp;
    ASSIGN_OR_RETURN(const WeightRows up, linear(c.names.up, inner, hidden));
    if (c.mlp == MlpKind::kSwiGlu) {
      ASSIGN_OR_RETURN(const WeightRows gate, linear(c.names.gate, inner, hidden));
      mlp.up = PackedMatrix::GateUp(compute_, gate, up, hidden, format_);
    } else {
      mlp.up = PackedMatrix(compute_, std::span(&up, 1), hidden, format_);
    }
    ASSIGN_OR_RETURN(const WeightRows down, linear(c.names.down, hidden, inner));
    mlp.down = PackedMatrix(compute_, std::span(&down, 1), inner, format_);
    return mlp;
  }

  Result<WeightRows> Linear(const std::string& name, int64_t rows, int64_t columns, bool bias) {
    ASSIGN_OR_RETURN(TensorView tensor, source_.get(name + ".weight", std::array{rows, columns}));
    WeightRows linear{tensor.bytes.data(), TypeOf(tensor.dtype), rows};
    if (bias) {
      ASSIGN_OR_RETURN(std::vector<float> values, GetVector(source_, name + ".bias", rows));
      linear.bias = biases_.emplace_back(std::move(values)).data();
    }
    return linear;
  }

  Result<std::vector<WeightRows>> Qkv(int index) {
    const ModelConfig& c = config_;
    const int64_t hidden = c.hidden_size, query = static_cast<int64_t>(c.heads) * c.head_dim;
    const int64_t kv = static_cast<int64_t>(c.kv_heads) * c.head_dim;
    const auto linear = [&](std::string_view part, int64_t rows) {
      return Linear(LayerTensor(c, index, part), rows, hidden, c.qkv_bias);
    };
    if (c.qkv == QkvKind::kFused) {
      ASSIGN_OR_RETURN(const WeightRows all, linear(c.names.qkv, query + 2 * kv));
      return SplitFused(c, all);
    }
    ASSIGN_OR_RETURN(const WeightRows q, linear(c.names.q, query));
    ASSIGN_OR_RETURN(const WeightRows k, linear(c.names.k, kv));
    ASSIGN_OR_RETURN(const WeightRows v, linear(c.names.v, kv));
    return std::vector{q, k, v};
  }

  const Compute& compute_;
  const ModelConfig& config_;
  const WeightSource& source_;
  const WeightFormat format_;
  std::list<std::vector<float>> biases_;
};

}  // namespace

WeightSource WeightSource::FromFiles(const TensorFiles& files) {
  struct Reading {
    explicit Reading(const TensorFiles& files) : scan(files) {}
    std::set<std::string> got;
    TensorScan scan;
  };
  const auto reading = std::make_shared<Reading>(files);
  return {.get = [&files, reading](const std::string& name,
                                   std::span<const int64_t> shape) -> Result<TensorView> {
            ASSIGN_OR_RETURN(TensorView view, files.Get(name, shape));
            reading->got.insert(name);
            return view;
          },
          .digest = [&files, reading]() -> Result<Digest> {
            for (const std::string& name : reading->got) {
              if (reading->scan.Finite(name)) continue;
              return Fail(ErrorCode::kCorrupt,
                          "{}: tensor {} holds NaN or infinity, so every answer would be garbage; "
                          "download it again",
                          files.source(), name);
            }
            return reading->scan.WeightsDigest();
          },
          .release = [&files] { files.Release(); }};
}

Status CheckWeights(const ModelConfig& config, const WeightSource& source) {
  for (const TensorSpec& tensor : ListTensors(config)) {
    const auto found = source.get(tensor.name, tensor.shape);
    if (found) continue;
    // A tied embedding may be there by the head's name only.
    const bool tied = config.tie_embeddings && tensor.role == TensorSpec::Role::kEmbedding &&
                      found.error().code == ErrorCode::kNotFound &&
                      source.get(std::string(config.names.head) + ".weight", tensor.shape);
    if (!tied) return tl::unexpected(found.error());
  }
  return {};
}

std::vector<std::string> UnusedTensors(const ModelConfig& config, const TensorFiles& files) {
  std::set<std::string, std::less<>> known = {std::string(config.names.head) + ".weight"};
  for (const TensorSpec& tensor : ListTensors(config)) known.insert(tensor.name);
  std::vector<std::string> unused;
  for (const auto& [name, view] : files.tensors()) {
    const bool is_buffer = name.ends_with(".inv_freq") || name.ends_with(".masked_bias") ||
                           name.ends_with(".attn.bias") || name.ends_with(".attention.bias");
    if (!is_buffer && !known.contains(name)) unused.push_back(name);
  }
  return unused;
}

Result<ModelWeights> LoadWeights(const Compute& compute, const ModelConfig& config,
                                 const WeightSource& source, WeightFormat format) {
  ModelWeights model;
  Loader outside(compute, config, source, format);
  RETURN_IF_ERROR(outside.Embeddings(&model));
  ASSIGN_OR_RETURN(model.final_norm, outside.Norm(std::string(config.names.final_norm),
                                                  config.hidden_size, config.norm));
  if (source.release) source.release();
  for (int i = 0; i < config.layers; ++i) {
    ASSIGN_OR_RETURN(LayerWeights layer, Loader(compute, config, source, format).Layer(i));
    model.layers.push_back(std::move(layer));
    if (source.release) source.release();
  }
  return model;
}

}  // namespace kvcake
