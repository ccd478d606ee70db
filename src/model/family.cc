#include "model/family.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/dump_json.h"
#include "base/utf8.h"
#include "model/config_rope.h"

namespace kvcake {

namespace {

using nlohmann::json;

// What Llama, Mistral and Qwen spell alike.
Status ReadCommon(const JsonField& fields, const FamilyDefaults& defaults, ModelConfig* config) {
  ASSIGN_OR_RETURN(const std::string act, fields["hidden_act"].Text("", kNameBytes));
  if (!act.empty() && act != "silu" && act != "swish") {
    return fields.Unsupported(fmt::format("hidden_act is {}; kvcake computes silu here", act));
  }
  ASSIGN_OR_RETURN(config->hidden_size, fields["hidden_size"].Int(1, kMaxDimension));
  ASSIGN_OR_RETURN(config->intermediate_size, fields["intermediate_size"].Int(1, kMaxDimension));
  ASSIGN_OR_RETURN(config->layers, fields["num_hidden_layers"].Int(1, kMaxLayers));
  ASSIGN_OR_RETURN(config->heads, fields["num_attention_heads"].Int(1, kMaxDimension));
  const bool as_heads = defaults.kv_heads == 0 || IsNull(fields["num_key_value_heads"]);
  ASSIGN_OR_RETURN(config->kv_heads,
                   fields["num_key_value_heads"].Int(1, kMaxDimension,
                                                     as_heads ? config->heads : defaults.kv_heads));
  ASSIGN_OR_RETURN(config->head_dim, fields["head_dim"].Int(1, kMaxDimension, defaults.head_dim));
  if (config->head_dim == 0) {
    if (config->hidden_size % config->heads != 0) {
      return fields.Bad(fmt::format(
          "hidden_size ({}) is no multiple of num_attention_heads ({}) and head_dim is missing",
          config->hidden_size, config->heads));
    }
    config->head_dim = config->hidden_size / config->heads;
  }
  ASSIGN_OR_RETURN(config->vocab_size, fields["vocab_size"].Int(1, kMaxVocab));
  ASSIGN_OR_RETURN(config->norm_eps, fields["rms_norm_eps"].Number(0, 1, defaults.norm_eps));
  ASSIGN_OR_RETURN(config->tie_embeddings,
                   fields["tie_word_embeddings"].Flag(defaults.tie_embeddings));
  RETURN_IF_ERROR(CheckHeads(fields, *config, "num_key_value_heads"));
  ASSIGN_OR_RETURN(const int context,
                   fields["max_position_embeddings"].Int(1, kMaxPositions, defaults.max_positions));
  ASSIGN_OR_RETURN(config->rope, ReadRope(fields, context, defaults.rope_theta));
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
Result<std::optional<bool>> LayerTypesSlide(const JsonField& fields) {
  const JsonField types = fields["layer_types"];
  if (types.null()) return std::nullopt;
  RETURN_IF_ERROR(types.ArraySize());
  bool slide = false;
  for (const json& type : types.value()) {
    if (type == "full_attention") continue;
    if (type != "sliding_attention") {
      return types.Unsupported(
          fmt::format("has {}; kvcake computes full_attention only", JsonText(type)));
    }
    slide = true;
  }
  return slide;
}

// A layer that slides is computed as a full one, which it is when its window hides nothing; a
// window that hides something is noted.
Status ReadWindow(const JsonField& fields, int window, ModelConfig* config) {
  if (window >= config->max_positions) return {};
  if (window == 0) {
    return fields.Unsupported(
        "layer_types has sliding_attention, but there is no sliding_window; kvcake computes full "
        "attention only");
  }
  config->sliding_window = window;
  return {};
}

// The window of families where it slides in every layer. 0: none.
Status ReadWindowOfAllLayers(const JsonField& fields, int absent, ModelConfig* config) {
  ASSIGN_OR_RETURN(const int window,
                   fields["sliding_window"].Int(1, kMaxPositions,
                                                IsNull(fields["sliding_window"]) ? 0 : absent));
  ASSIGN_OR_RETURN(const std::optional<bool> slide, LayerTypesSlide(fields));
  if (window == 0 && !slide.value_or(false)) return {};
  return ReadWindow(fields, window, config);
}

// Qwen's window slides where layer_types says so, else from layer max_window_layers on, and only
// when it is used at all.
Status ReadQwenWindow(const JsonField& fields, ModelConfig* config) {
  ASSIGN_OR_RETURN(const bool use, fields["use_sliding_window"].Flag(false));
  ASSIGN_OR_RETURN(
      const int named,
      fields["sliding_window"].Int(0, kMaxPositions, IsNull(fields["sliding_window"]) ? 0 : 4096));
  ASSIGN_OR_RETURN(const int first, fields["max_window_layers"].Int(0, kMaxPositions, 28));
  ASSIGN_OR_RETURN(const std::optional<bool> slide, LayerTypesSlide(fields));
  const int window = use ? named : 0;
  if (!slide.value_or(window > 0 && first < config->layers)) return {};
  return ReadWindow(fields, window, config);
}

Status ReadLlama(const JsonField& fields, const FamilyDefaults& defaults, ModelConfig* config) {
  RETURN_IF_ERROR(ReadCommon(fields, defaults, config));
  ASSIGN_OR_RETURN(config->qkv_bias, fields["attention_bias"].Flag(false));
  config->o_bias = config->qkv_bias;
  ASSIGN_OR_RETURN(config->mlp_bias, fields["mlp_bias"].Flag(false));
  return ReadWindowOfAllLayers(fields, 0, config);
}

void WriteLlama(const ModelConfig& config, json* out) {
  *out = WriteCommon(config);
  (*out)["attention_bias"] = config.qkv_bias;
  (*out)["mlp_bias"] = config.mlp_bias;
}

Status ReadMistral(const JsonField& fields, const FamilyDefaults& defaults, ModelConfig* config) {
  RETURN_IF_ERROR(ReadCommon(fields, defaults, config));
  return ReadWindowOfAllLayers(fields, 4096, config);
}

void WriteMistral(const ModelConfig& config, json* out) {
  *out = WriteCommon(config);
  (*out)["sliding_window"] = nullptr;
}

Status ReadQwen2(const JsonField& fields, const FamilyDefaults& defaults, ModelConfig* config) {
  RETURN_IF_ERROR(ReadCommon(fields, defaults, config));
  config->qkv_bias = true;
  return ReadQwenWindow(fields, config);
}

void WriteQwen2(const ModelConfig& config, json* out) {
  *out = WriteCommon(config);
  (*out)["use_sliding_window"] = false;
}

Status ReadQwen3(const JsonField& fields, const FamilyDefaults& defaults, ModelConfig* config) {
  RETURN_IF_ERROR(ReadCommon(fields, defaults, config));
  config->qk_norm = true;
  ASSIGN_OR_RETURN(config->qkv_bias, fields["attention_bias"].Flag(false));
  config->o_bias = config->qkv_bias;
  return ReadQwenWindow(fields, config);
}

void WriteQwen3(const ModelConfig& config, json* out) {
  WriteQwen2(config, out);
  (*out)["attention_bias"] = config.qkv_bias;
}

// How many there are, and go to a token.
Status ReadExperts(const JsonField& fields, const char* count_name, const ExpertsConfig& absent,
                   ModelConfig* config) {
  ExpertsConfig* const experts = &config->experts;
  *experts = absent;
  ASSIGN_OR_RETURN(experts->count, fields[count_name].Int(1, kMaxExperts, absent.count));
  ASSIGN_OR_RETURN(experts->per_token,
                   fields["num_experts_per_tok"].Int(1, kMaxExperts, absent.per_token));
  if (experts->count > kMaxExperts / config->layers) {
    return fields.Bad(fmt::format("num_hidden_layers ({}) x {} ({}) exceeds {}", config->layers,
                                  count_name, experts->count, kMaxExperts));
  }
  if (experts->per_token <= experts->count) return {};
  return fields.Bad(fmt::format("num_experts_per_tok is {}, more than the {} of {}",
                                experts->per_token, experts->count, count_name));
}

Status ReadQwen3Moe(const JsonField& fields, const FamilyDefaults& defaults, ModelConfig* config) {
  RETURN_IF_ERROR(ReadQwen3(fields, defaults, config));
  const char* count_name = fields["num_experts"].null() ? "num_local_experts" : "num_experts";
  RETURN_IF_ERROR(ReadExperts(fields, count_name, {.count = 128, .per_token = 8}, config));
  ASSIGN_OR_RETURN(config->experts.normalized, fields["norm_topk_prob"].Flag(false));
  ASSIGN_OR_RETURN(config->intermediate_size,
                   fields["moe_intermediate_size"].Int(1, kMaxDimension, 768));
  ASSIGN_OR_RETURN(const int step, fields["decoder_sparse_step"].Int(1, kMaxLayers, 1));
  const JsonField dense = fields["mlp_only_layers"];
  if (step != 1 || !(dense.null() || dense.value().empty())) {
    return fields.Unsupported(
        "decoder_sparse_step or mlp_only_layers says that some layers have "
        "no experts; kvcake runs models where all have");
  }
  NameQwenExperts(&config->names);
  return {};
}

void WriteQwen3Moe(const ModelConfig& config, json* out) {
  WriteQwen3(config, out);
  (*out)["moe_intermediate_size"] = config.intermediate_size;
  (*out)["num_experts"] = config.experts.count;
  (*out)["num_experts_per_tok"] = config.experts.per_token;
  (*out)["norm_topk_prob"] = config.experts.normalized;
  (*out)["decoder_sparse_step"] = 1;
  (*out)["mlp_only_layers"] = json::array();
}

Status ReadMixtral(const JsonField& fields, const FamilyDefaults& defaults, ModelConfig* config) {
  RETURN_IF_ERROR(ReadCommon(fields, defaults, config));
  const ExpertsConfig absent = {.count = 8, .per_token = 2, .normalized = true};
  RETURN_IF_ERROR(ReadExperts(fields, "num_local_experts", absent, config));
  NameMixtralExperts(&config->names);
  return ReadWindowOfAllLayers(fields, 0, config);
}

void WriteMixtral(const ModelConfig& config, json* out) {
  WriteMistral(config, out);
  (*out)["num_local_experts"] = config.experts.count;
  (*out)["num_experts_per_tok"] = config.experts.per_token;
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
    {"qwen3_moe",
     "Qwen3MoeForCausalLM",
     {.kv_heads = 4, .max_positions = 32768},
     ReadQwen3Moe,
     WriteQwen3Moe},
    {"mixtral",
     "MixtralForCausalLM",
     {.kv_heads = 8,
      .max_positions = 131072,
      .norm_eps = 1e-5,
      .rope_theta = 1e6,
      .bos_token = 1,
      .eos_token = 2},
     ReadMixtral,
     WriteMixtral},
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

void NameQwenExperts(TensorNames* names) {
  names->router = "mlp.gate";
  names->experts = "mlp.experts";
  names->gate = "gate_proj";
  names->up = "up_proj";
  names->down = "down_proj";
}

void NameMixtralExperts(TensorNames* names) {
  names->router = "block_sparse_moe.gate";
  names->experts = "block_sparse_moe.experts";
  names->gate = "w1";
  names->up = "w3";
  names->down = "w2";
}

std::string JsonText(const json& value) {
  constexpr size_t kShownBytes = 60;
  return Clip(DumpJson(value), kShownBytes);
}

Status CheckHeads(const JsonField& fields, const ModelConfig& config, const char* kv_heads_name) {
  if (config.heads % config.kv_heads != 0) {
    return fields.Bad(fmt::format("num_attention_heads ({}) is no multiple of {} ({})",
                                  config.heads, kv_heads_name, config.kv_heads));
  }
  if (config.head_dim % 2 != 0) {
    return fields.Bad(fmt::format("head_dim ({}) must be even for RoPE", config.head_dim));
  }
  if (static_cast<int64_t>(config.heads) * config.head_dim > kMaxDimension) {
    return fields.Bad(fmt::format("num_attention_heads ({}) x head_dim ({}) exceeds {}",
                                  config.heads, config.head_dim, kMaxDimension));
  }
  return {};
}

void SetContext(int max_position_embeddings, ModelConfig* config) {
  const RopeConfig& rope = config->rope;
  double context = max_position_embeddings;
  if (rope.kind == RopeConfig::Kind::kLinear) context *= rope.factor;
  if (rope.kind == RopeConfig::Kind::kYarn) context = rope.original_max_positions * rope.factor;
  config->max_positions = static_cast<int>(std::min<double>(context, kMaxPositions));
}

int MaxPositionEmbeddings(const ModelConfig& config) {
  const bool linear = config.rope.kind == RopeConfig::Kind::kLinear;
  return static_cast<int>(config.max_positions / (linear ? config.rope.factor : 1.0));
}

}  // namespace kvcake
