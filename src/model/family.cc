#include "model/family.h"

#include <algorithm>
#include <optional>

#include "model/config_rope.h"

namespace kvcake {

namespace {

using nlohmann::json;

// What Llama, Mistral and Qwen spell alike.
Status ReadCommon(const Fields& fields, const FamilyDefaults& defaults, ModelConfig* config) {
  ASSIGN_OR_RETURN(const std::string act, fields.Text("hidden_act"));
  if (!act.empty() && act != "silu" && act != "swish") {
    return fields.Unsupported(fmt::format("hidden_act is {}; kvcake computes silu here", act));
  }
  ASSIGN_OR_RETURN(config->hidden_size, fields.Int("hidden_size", 1, kMaxDimension));
  ASSIGN_OR_RETURN(config->intermediate_size, fields.Int("intermediate_size", 1, kMaxDimension));
  ASSIGN_OR_RETURN(config->layers, fields.Int("num_hidden_layers", 1, kMaxLayers));
  ASSIGN_OR_RETURN(config->heads, fields.Int("num_attention_heads", 1, kMaxDimension));
  const bool as_heads = defaults.kv_heads == 0 || fields.IsNull("num_key_value_heads");
  ASSIGN_OR_RETURN(config->kv_heads, fields.Int("num_key_value_heads", 1, kMaxDimension,
                                                as_heads ? config->heads : defaults.kv_heads));
  ASSIGN_OR_RETURN(config->head_dim, fields.Int("head_dim", 1, kMaxDimension, defaults.head_dim));
  if (config->head_dim == 0) {
    if (config->hidden_size % config->heads != 0) {
      return fields.Invalid(fmt::format(
          "hidden_size ({}) is no multiple of num_attention_heads ({}) and head_dim is missing",
          config->hidden_size, config->heads));
    }
    config->head_dim = config->hidden_size / config->heads;
  }
  ASSIGN_OR_RETURN(config->vocab_size, fields.Int("vocab_size", 1, kMaxVocab));
  ASSIGN_OR_RETURN(config->norm_eps, fields.Number("rms_norm_eps", 0, 1, 1e-6));
  ASSIGN_OR_RETURN(config->tie_embeddings,
                   fields.Bool("tie_word_embeddings", defaults.tie_embeddings));
  RETURN_IF_ERROR(CheckHeads(fields, *config, "num_key_value_heads"));
  ASSIGN_OR_RETURN(const int context,
                   fields.Int("max_position_embeddings", 1, kMaxPositions, defaults.max_positions));
  ASSIGN_OR_RETURN(config->rope, ReadRope(fields, context));
  SetContext(context, config);
  return {};
}

json WriteCommon(const ModelConfig& c) {
  json out = {{"hidden_act", "silu"},
              {"hidden_size", c.hidden_size},
              {"intermediate_size", c.intermediate_size},
              {"num_hidden_layers", c.layers},
              {"num_attention_heads", c.heads},
              {"num_key_value_heads", c.kv_heads},
              {"head_dim", c.head_dim},
              {"vocab_size", c.vocab_size},
              {"max_position_embeddings", MaxPositionEmbeddings(c)},
              {"rms_norm_eps", c.norm_eps},
              {"tie_word_embeddings", c.tie_embeddings}};
  WriteRope(c.rope, &out);
  return out;
}

// Whether layer_types names a layer that slides; nothing when it is absent.
Result<std::optional<bool>> LayerTypesSlide(const Fields& fields) {
  const json* types = fields.Find("layer_types");
  if (!types) return std::nullopt;
  if (!types->is_array()) return fields.Invalid("layer_types must be a list");
  bool slide = false;
  for (const json& type : *types) {
    if (type == "full_attention") continue;
    if (type != "sliding_attention") {
      return fields.Unsupported(fmt::format(
          "layer_types has {}; kvcake computes full_attention only", Fields::Show(type)));
    }
    slide = true;
  }
  return slide;
}

// A layer that slides is computed as a full one, which it is when its window hides nothing.
Status CheckWindow(const Fields& fields, const ModelConfig& config, int window) {
  if (window >= config.max_positions) return {};
  if (window == 0) {
    return fields.Unsupported(
        "layer_types has sliding_attention, but there is no sliding_window; kvcake computes full "
        "attention only");
  }
  return fields.Unsupported(
      fmt::format("sliding_window is {}, smaller than the context of {}; kvcake computes full "
                  "attention only: lower max_position_embeddings to {} to run within the window",
                  window, config.max_positions, window));
}

// The window of families where it slides in every layer. 0: none.
Status CheckWindowOfAllLayers(const Fields& fields, const ModelConfig& config, int absent) {
  ASSIGN_OR_RETURN(const int window, fields.Int("sliding_window", 1, kMaxPositions,
                                                fields.IsNull("sliding_window") ? 0 : absent));
  ASSIGN_OR_RETURN(const std::optional<bool> slide, LayerTypesSlide(fields));
  if (window == 0 && !slide.value_or(false)) return {};
  return CheckWindow(fields, config, window);
}

// Qwen's window slides where layer_types says so, else from layer max_window_layers on, and only
// when it is used at all.
Status CheckQwenWindow(const Fields& fields, const ModelConfig& config) {
  ASSIGN_OR_RETURN(const bool use, fields.Bool("use_sliding_window", false));
  ASSIGN_OR_RETURN(const int named, fields.Int("sliding_window", 0, kMaxPositions,
                                               fields.IsNull("sliding_window") ? 0 : 4096));
  ASSIGN_OR_RETURN(const int first, fields.Int("max_window_layers", 0, kMaxPositions, 28));
  ASSIGN_OR_RETURN(const std::optional<bool> slide, LayerTypesSlide(fields));
  const int window = use ? named : 0;
  if (!slide.value_or(window > 0 && first < config.layers)) return {};
  return CheckWindow(fields, config, window);
}

Status ReadLlama(const Fields& fields, const FamilyDefaults& defaults, ModelConfig* config) {
  RETURN_IF_ERROR(ReadCommon(fields, defaults, config));
  ASSIGN_OR_RETURN(config->qkv_bias, fields.Bool("attention_bias", false));
  config->o_bias = config->qkv_bias;
  ASSIGN_OR_RETURN(config->mlp_bias, fields.Bool("mlp_bias", false));
  return CheckWindowOfAllLayers(fields, *config, 0);
}

void WriteLlama(const ModelConfig& config, json* out) {
  *out = WriteCommon(config);
  (*out)["attention_bias"] = config.qkv_bias;
  (*out)["mlp_bias"] = config.mlp_bias;
}

Status ReadMistral(const Fields& fields, const FamilyDefaults& defaults, ModelConfig* config) {
  RETURN_IF_ERROR(ReadCommon(fields, defaults, config));
  return CheckWindowOfAllLayers(fields, *config, 4096);
}

void WriteMistral(const ModelConfig& config, json* out) {
  *out = WriteCommon(config);
  (*out)["sliding_window"] = nullptr;
}

Status ReadQwen2(const Fields& fields, const FamilyDefaults& defaults, ModelConfig* config) {
  RETURN_IF_ERROR(ReadCommon(fields, defaults, config));
  config->qkv_bias = true;
  return CheckQwenWindow(fields, *config);
}

void WriteQwen2(const ModelConfig& config, json* out) {
  *out = WriteCommon(config);
  (*out)["use_sliding_window"] = false;
}

Status ReadQwen3(const Fields& fields, const FamilyDefaults& defaults, ModelConfig* config) {
  RETURN_IF_ERROR(ReadCommon(fields, defaults, config));
  config->qk_norm = true;
  ASSIGN_OR_RETURN(config->qkv_bias, fields.Bool("attention_bias", false));
  config->o_bias = config->qkv_bias;
  return CheckQwenWindow(fields, *config);
}

void WriteQwen3(const ModelConfig& config, json* out) {
  WriteQwen2(config, out);
  (*out)["attention_bias"] = config.qkv_bias;
}

constexpr Family kFamilies[] = {
    {"llama",
     "LlamaForCausalLM",
     {.max_positions = 2048, .bos_token = 1, .eos_token = 2},
     ReadLlama,
     WriteLlama},
    {"mistral",
     "MistralForCausalLM",
     {.kv_heads = 8, .max_positions = 131072, .bos_token = 1, .eos_token = 2},
     ReadMistral,
     WriteMistral},
    {"qwen2", "Qwen2ForCausalLM", {.kv_heads = 32, .max_positions = 32768}, ReadQwen2, WriteQwen2},
    {"qwen3",
     "Qwen3ForCausalLM",
     {.kv_heads = 32, .head_dim = 128, .max_positions = 32768},
     ReadQwen3,
     WriteQwen3},
    {"falcon",
     "FalconForCausalLM",
     {.max_positions = 2048, .bos_token = 11, .eos_token = 11, .tie_embeddings = true},
     ReadFalcon,
     WriteFalcon},
    // What Falcon was called before Hugging Face transformers took it in: 1B and 7B, then 40B.
    {"RefinedWebModel",
     "RWForCausalLM",
     {.max_positions = 2048, .bos_token = 1, .eos_token = 2, .tie_embeddings = true},
     ReadFalcon,
     WriteFalcon},
    {"RefinedWeb",
     "RWForCausalLM",
     {.max_positions = 2048, .bos_token = 1, .eos_token = 2, .tie_embeddings = true},
     ReadFalcon,
     WriteFalcon},
};

}  // namespace

std::span<const Family> Families() { return kFamilies; }

Status CheckHeads(const Fields& fields, const ModelConfig& config, const char* kv_heads_name) {
  if (config.heads % config.kv_heads != 0) {
    return fields.Invalid(fmt::format("num_attention_heads ({}) is no multiple of {} ({})",
                                      config.heads, kv_heads_name, config.kv_heads));
  }
  if (config.head_dim % 2 != 0) {
    return fields.Invalid(fmt::format("head_dim ({}) must be even for RoPE", config.head_dim));
  }
  if (static_cast<int64_t>(config.heads) * config.head_dim > kMaxDimension) {
    return fields.Invalid(fmt::format("num_attention_heads ({}) x head_dim ({}) exceeds {}",
                                      config.heads, config.head_dim, kMaxDimension));
  }
  return {};
}

void SetContext(int max_position_embeddings, ModelConfig* config) {
  const bool linear = config->rope.kind == RopeConfig::Kind::kLinear;
  const double context = max_position_embeddings * (linear ? config->rope.factor : 1.0);
  config->max_positions = static_cast<int>(std::min<double>(context, kMaxPositions));
}

int MaxPositionEmbeddings(const ModelConfig& config) {
  const bool linear = config.rope.kind == RopeConfig::Kind::kLinear;
  return static_cast<int>(config.max_positions / (linear ? config.rope.factor : 1.0));
}

}  // namespace kvcake
