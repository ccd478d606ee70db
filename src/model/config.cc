#include "model/config.h"

#include <cmath>
#include <limits>
#include <optional>
#include <string_view>
#include <utility>

#include "model/json_file.h"

namespace kvcake {

namespace {

using nlohmann::json;

// One object of a file, read field by field. A field that is null counts as absent, as Hugging Face
// treats it.
class Fields {
 public:
  Fields(const json& object, std::string source) : object_(object), source_(std::move(source)) {}

  const std::string& source() const { return source_; }
  const json* Find(const char* name) const {
    const auto it = object_.find(name);
    return it == object_.end() || it->is_null() ? nullptr : &*it;
  }
  bool IsNull(const char* name) const { return object_.contains(name) && !Find(name); }

  Result<int> Int(const char* name, int min, int max, std::optional<int> absent = {}) const {
    const json* value = Find(name);
    if (!value) {
      if (absent) return *absent;
      return Missing(name);
    }
    const bool in_range =
        value->is_number_integer() &&
        (value->is_number_unsigned()
             ? value->get<uint64_t>() <= static_cast<uint64_t>(std::max(max, 0))
             : value->get<int64_t>() <= max) &&
        (value->is_number_unsigned() ? min <= 0 || value->get<uint64_t>() >= uint64_t(min)
                                     : value->get<int64_t>() >= min);
    if (!in_range) {
      return Fail(ErrorCode::kInvalidArgument,
                  "{}: {} is {}, but must be a whole number in [{}, {}]", source_, name,
                  Show(*value), min, max);
    }
    return value->get<int>();
  }

  Result<double> Number(const char* name, double min, double max,
                        std::optional<double> absent = {}) const {
    const json* value = Find(name);
    if (!value) {
      if (absent) return *absent;
      return Missing(name);
    }
    if (value->is_number()) {
      const double number = value->get<double>();
      if (number >= min && number <= max) return number;
    }
    return Fail(ErrorCode::kInvalidArgument, "{}: {} is {}, but must be a number in [{}, {}]",
                source_, name, Show(*value), min, max);
  }

  Result<bool> Bool(const char* name, bool absent) const {
    const json* value = Find(name);
    if (!value) return absent;
    if (value->is_boolean()) return value->get<bool>();
    return Fail(ErrorCode::kInvalidArgument, "{}: {} is {}, but must be true or false", source_,
                name, Show(*value));
  }

  // Empty when absent.
  Result<std::string> Text(const char* name) const {
    const json* value = Find(name);
    if (!value) return std::string();
    if (value->is_string()) return value->get<std::string>();
    return Fail(ErrorCode::kInvalidArgument, "{}: {} is {}, but must be a string", source_, name,
                Show(*value));
  }

  // A value, short enough for a message.
  static std::string Show(const json& value) {
    std::string text = value.dump();
    if (text.size() > 60) text = text.substr(0, 57) + "...";
    return text;
  }

 private:
  tl::unexpected<Error> Missing(const char* name) const {
    return Fail(ErrorCode::kInvalidArgument, "{}: {} is missing", source_, name);
  }

  const json& object_;
  std::string source_;
};

constexpr int kMaxDimension = 1 << 20;
constexpr int kMaxVocab = 1 << 24;
constexpr int kMaxPositions = 1 << 30;
constexpr int kMaxLayers = 4096;
constexpr double kMaxFactor = 1e6;

tl::unexpected<Error> Unsupported(const Fields& fields, std::string_view what) {
  return Fail(ErrorCode::kUnsupported, "{}: {}", fields.source(), what);
}

// Llama is the one architecture; what its configuration can turn on beyond it is refused here.
Status CheckArchitecture(const Fields& fields) {
  const json* architectures = fields.Find("architectures");
  if (architectures && (!architectures->is_array() || architectures->size() != 1 ||
                        (*architectures)[0] != "LlamaForCausalLM")) {
    return Unsupported(fields, fmt::format("architectures is {}; kvcake runs LlamaForCausalLM only",
                                           Fields::Show(*architectures)));
  }
  ASSIGN_OR_RETURN(const std::string type, fields.Text("model_type"));
  if (type.empty() && !architectures) {
    return Fail(ErrorCode::kInvalidArgument, "{}: neither architectures nor model_type is there",
                fields.source());
  }
  if (!type.empty() && type != "llama") {
    return Unsupported(fields, fmt::format("model_type is {}; kvcake runs llama only", type));
  }
  ASSIGN_OR_RETURN(const std::string act, fields.Text("hidden_act"));
  if (!act.empty() && act != "silu") {
    return Unsupported(fields, fmt::format("hidden_act is {}; kvcake computes silu only", act));
  }
  for (const char* name : {"attention_bias", "mlp_bias"}) {
    ASSIGN_OR_RETURN(const bool on, fields.Bool(name, false));
    if (on) return Unsupported(fields, fmt::format("{} is true; biases are not computed", name));
  }
  for (const char* name : {"sliding_window", "quantization_config"}) {
    if (fields.Find(name)) {
      return Unsupported(fields, fmt::format("{} is set; kvcake has no such thing", name));
    }
  }
  if (const json* types = fields.Find("layer_types")) {
    for (const json& layer : *types) {
      if (layer != "full_attention") {
        return Unsupported(fields,
                           fmt::format("layer_types has {}; only full_attention is computed",
                                       Fields::Show(layer)));
      }
    }
  }
  ASSIGN_OR_RETURN(const double rotary, fields.Number("partial_rotary_factor", 0, 1, 1.0));
  if (rotary != 1) return Unsupported(fields, "partial_rotary_factor is not 1");
  return {};
}

// One spelling of the scaling: `rope_scaling`, or the newer `rope_parameters`.
Status ReadRopeScaling(const Fields& fields, RopeConfig* rope) {
  ASSIGN_OR_RETURN(std::string type, fields.Text("rope_type"));
  if (type.empty()) {
    ASSIGN_OR_RETURN(type, fields.Text("type"));
  }
  ASSIGN_OR_RETURN(const double rotary, fields.Number("partial_rotary_factor", 0, 1, 1.0));
  if (rotary != 1) return Unsupported(fields, "partial_rotary_factor is not 1");
  if (type.empty() || type == "default") return {};
  if (type == "dynamic" || type == "longrope") {
    return Unsupported(fields, fmt::format("RoPE scaling {}: its angles depend on the prompt's "
                                           "length, so a KV cache cannot be reused across lengths",
                                           type));
  }
  if (type != "linear" && type != "llama3") {
    return Unsupported(
        fields, fmt::format("RoPE scaling {}; kvcake computes default, linear and llama3", type));
  }
  ASSIGN_OR_RETURN(rope->factor, fields.Number("factor", 1, kMaxFactor));
  rope->kind = RopeConfig::Kind::kLinear;
  if (type == "linear") return {};
  rope->kind = RopeConfig::Kind::kLlama3;
  ASSIGN_OR_RETURN(rope->low_freq_factor, fields.Number("low_freq_factor", 1e-6, kMaxFactor));
  ASSIGN_OR_RETURN(rope->high_freq_factor, fields.Number("high_freq_factor", 1e-6, kMaxFactor));
  ASSIGN_OR_RETURN(rope->original_max_positions,
                   fields.Int("original_max_position_embeddings", 1, kMaxPositions));
  if (rope->high_freq_factor <= rope->low_freq_factor) {
    return Fail(ErrorCode::kInvalidArgument,
                "{}: high_freq_factor ({}) must be greater than low_freq_factor ({})",
                fields.source(), rope->high_freq_factor, rope->low_freq_factor);
  }
  return {};
}

Result<RopeConfig> ReadRope(const Fields& fields) {
  RopeConfig rope;
  ASSIGN_OR_RETURN(rope.theta, fields.Number("rope_theta", 1, 1e15, 10000.0));
  for (const char* name : {"rope_scaling", "rope_parameters"}) {
    const json* object = fields.Find(name);
    if (!object) continue;
    const Fields inner(*object, fmt::format("{}: {}", fields.source(), name));
    if (!object->is_object()) {
      return Fail(ErrorCode::kInvalidArgument, "{} is not an object", inner.source());
    }
    for (const auto& [key, value] : object->items()) {
      if (value.is_object()) {
        return Unsupported(inner, fmt::format("one RoPE for each kind of layer ({})", key));
      }
    }
    ASSIGN_OR_RETURN(rope.theta, inner.Number("rope_theta", 1, 1e15, rope.theta));
    RETURN_IF_ERROR(ReadRopeScaling(inner, &rope));
  }
  return rope;
}

Status ReadShape(const Fields& fields, ModelConfig* config) {
  ASSIGN_OR_RETURN(config->hidden_size, fields.Int("hidden_size", 1, kMaxDimension));
  ASSIGN_OR_RETURN(config->intermediate_size, fields.Int("intermediate_size", 1, kMaxDimension));
  ASSIGN_OR_RETURN(config->layers, fields.Int("num_hidden_layers", 1, kMaxLayers));
  ASSIGN_OR_RETURN(config->heads, fields.Int("num_attention_heads", 1, kMaxDimension));
  ASSIGN_OR_RETURN(config->kv_heads,
                   fields.Int("num_key_value_heads", 1, kMaxDimension, config->heads));
  ASSIGN_OR_RETURN(config->head_dim, fields.Int("head_dim", 1, kMaxDimension, 0));
  ASSIGN_OR_RETURN(config->vocab_size, fields.Int("vocab_size", 1, kMaxVocab));
  ASSIGN_OR_RETURN(config->max_positions, fields.Int("max_position_embeddings", 1, kMaxPositions));
  ASSIGN_OR_RETURN(config->rms_norm_eps, fields.Number("rms_norm_eps", 0, 1, 1e-6));
  ASSIGN_OR_RETURN(config->tie_embeddings, fields.Bool("tie_word_embeddings", false));
  if (config->heads % config->kv_heads != 0) {
    return Fail(ErrorCode::kInvalidArgument,
                "{}: num_attention_heads ({}) is no multiple of num_key_value_heads ({})",
                fields.source(), config->heads, config->kv_heads);
  }
  if (config->head_dim == 0) {
    if (config->hidden_size % config->heads != 0) {
      return Fail(ErrorCode::kInvalidArgument,
                  "{}: hidden_size ({}) is no multiple of num_attention_heads ({}) and head_dim is "
                  "missing",
                  fields.source(), config->hidden_size, config->heads);
    }
    config->head_dim = config->hidden_size / config->heads;
  }
  if (config->head_dim % 2 != 0) {
    return Fail(ErrorCode::kInvalidArgument, "{}: head_dim ({}) must be even for RoPE",
                fields.source(), config->head_dim);
  }
  if (static_cast<int64_t>(config->heads) * config->head_dim > kMaxDimension) {
    return Fail(ErrorCode::kInvalidArgument,
                "{}: num_attention_heads ({}) x head_dim ({}) exceeds {}", fields.source(),
                config->heads, config->head_dim, kMaxDimension);
  }
  return {};
}

Result<std::vector<int32_t>> ReadEos(const Fields& fields, int vocab_size) {
  std::vector<int32_t> tokens;
  const json* value = fields.Find("eos_token_id");
  if (!value) return tokens;
  const json list = value->is_array() ? *value : json::array({*value});
  for (const json& token : list) {
    const json object = {{"eos_token_id", token}};
    // Some published configurations say -1 or an id beyond the vocabulary for "none".
    ASSIGN_OR_RETURN(
        const int id,
        Fields(object, fields.source()).Int("eos_token_id", -1, std::numeric_limits<int>::max()));
    if (id >= 0 && id < vocab_size) tokens.push_back(id);
  }
  return tokens;
}

Status ReadTokens(const Fields& fields, ModelConfig* config) {
  // Absent, they are what Hugging Face's LlamaConfig has by default; null, there are none.
  const int bos = fields.IsNull("bos_token_id") ? -1 : 1;
  ASSIGN_OR_RETURN(config->bos_token,
                   fields.Int("bos_token_id", -1, std::numeric_limits<int>::max(), bos));
  if (config->bos_token >= config->vocab_size) config->bos_token = -1;
  ASSIGN_OR_RETURN(config->eos_tokens, ReadEos(fields, config->vocab_size));
  if (!fields.Find("eos_token_id") && !fields.IsNull("eos_token_id") && config->vocab_size > 2) {
    config->eos_tokens = {2};
  }
  return {};
}

Result<json> ReadObject(const std::string& path) {
  ASSIGN_OR_RETURN(json object, ReadJsonFile(path));
  if (!object.is_object()) {
    return Fail(ErrorCode::kInvalidArgument, "{}: not a JSON object", path);
  }
  return object;
}

}  // namespace

int64_t ModelConfig::parameters() const {
  const int64_t hidden = hidden_size;
  const int64_t attention = hidden * head_dim * (2ll * heads + 2ll * kv_heads);
  const int64_t mlp = 3 * hidden * intermediate_size;
  const int64_t embeddings = hidden * vocab_size * (tie_embeddings ? 1 : 2);
  return embeddings + layers * (attention + mlp + 2 * hidden) + hidden;
}

Result<ModelConfig> LoadModelConfig(const std::string& dir) {
  const std::string path = dir + "/config.json";
  ASSIGN_OR_RETURN(const json object, ReadObject(path));
  const Fields fields(object, path);
  ModelConfig config;
  RETURN_IF_ERROR(CheckArchitecture(fields));
  RETURN_IF_ERROR(ReadShape(fields, &config));
  ASSIGN_OR_RETURN(config.rope, ReadRope(fields));
  RETURN_IF_ERROR(ReadTokens(fields, &config));

  const std::string generation_path = dir + "/generation_config.json";
  const Result<json> generation = ReadObject(generation_path);
  if (!generation) {
    if (generation.error().code == ErrorCode::kNotFound) return config;
    return tl::unexpected(generation.error());
  }
  const Fields generation_fields(*generation, generation_path);
  if (generation_fields.Find("eos_token_id")) {
    ASSIGN_OR_RETURN(config.eos_tokens, ReadEos(generation_fields, config.vocab_size));
  }
  return config;
}

}  // namespace kvcake
