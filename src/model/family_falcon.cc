// Falcon: 7B (multi-query, attention and MLP in parallel behind one norm), RefinedWeb 1B
// (multi-head, ALiBi, biases, sequential) and the new decoder architecture of 40B and 180B
// (grouped-query, in parallel behind a norm each).
#include <nlohmann/json.hpp>

#include "model/config_rope.h"
#include "model/family.h"

namespace kvcake {

namespace {

using nlohmann::json;

// The newer name of a field, unless only an older one is there.
const char* Named(const JsonField& fields, const char* name, const char* older) {
  return !fields[name].null() || fields[older].null() ? name : older;
}

// Hugging Face takes null for false, whatever the default.
Result<bool> Flag(const JsonField& fields, const char* name, bool absent) {
  return fields[name].Flag(absent && !IsNull(fields[name]));
}

Status ReadShape(const JsonField& fields, ModelConfig* config) {
  ASSIGN_OR_RETURN(config->hidden_size,
                   fields[Named(fields, "hidden_size", "n_embed")].Int(1, kMaxDimension));
  ASSIGN_OR_RETURN(config->layers,
                   fields[Named(fields, "num_hidden_layers", "n_layer")].Int(1, kMaxLayers));
  ASSIGN_OR_RETURN(config->heads,
                   fields[Named(fields, "num_attention_heads", "n_head")].Int(1, kMaxDimension));
  if (config->hidden_size % config->heads != 0) {
    return fields.Bad(fmt::format("hidden_size ({}) is no multiple of num_attention_heads ({})",
                                  config->hidden_size, config->heads));
  }
  config->head_dim = config->hidden_size / config->heads;
  ASSIGN_OR_RETURN(config->intermediate_size,
                   fields["ffn_hidden_size"].Int(1, kMaxDimension, 4 * config->hidden_size));
  ASSIGN_OR_RETURN(config->vocab_size, fields["vocab_size"].Int(1, kMaxVocab));
  ASSIGN_OR_RETURN(config->norm_eps, fields["layer_norm_epsilon"].Number(0, 1, 1e-5));
  return {};
}

// How attention and MLP stand to each other, and how many heads keep keys.
Status ReadBlock(const JsonField& fields, ModelConfig* config) {
  ASSIGN_OR_RETURN(const std::string type, fields["model_type"].Text("", kNameBytes));
  const bool old = type.starts_with("RefinedWeb");
  ASSIGN_OR_RETURN(const bool said, Flag(fields, "new_decoder_architecture", type == "RefinedWeb"));
  const bool grouped = said || type == "RefinedWeb";
  ASSIGN_OR_RETURN(const bool said_parallel, Flag(fields, "parallel_attn", !old || grouped));
  ASSIGN_OR_RETURN(const bool multi_query, Flag(fields, "multi_query", !old));
  ASSIGN_OR_RETURN(const int kv_heads, fields[Named(fields, "num_kv_heads", "n_head_kv")].Int(
                                           1, kMaxDimension, config->heads));
  ASSIGN_OR_RETURN(const int norms, fields["num_ln_in_parallel_attn"].Int(1, 2, grouped ? 2 : 1));
  if (grouped && norms == 1 && !said_parallel) {
    return fields.Unsupported(
        "new_decoder_architecture is true with one norm, but parallel_attn is false; the new "
        "architecture is parallel");
  }
  const bool parallel = said_parallel || grouped;  // which transformers does not ask
  if (!grouped && parallel && norms == 2) {
    return fields.Unsupported(
        "num_ln_in_parallel_attn is 2, but new_decoder_architecture is false; only the new "
        "architecture has two norms");
  }
  config->block = !parallel    ? BlockKind::kSequential
                  : norms == 2 ? BlockKind::kParallelTwoNorms
                               : BlockKind::kParallel;
  config->kv_heads = !grouped && multi_query ? 1 : kv_heads;
  if (!grouped && !multi_query && kv_heads != config->heads) {
    return fields.Unsupported(
        fmt::format("num_kv_heads is {}, but only new_decoder_architecture has groups of heads; "
                    "num_attention_heads is {}",
                    kv_heads, config->heads));
  }
  return {};
}

}  // namespace

void DescribeFalcon(ModelConfig* config) {
  config->family = "falcon";
  config->norm = NormKind::kLayer;
  config->mlp = MlpKind::kGelu;
  config->qkv = QkvKind::kFused;
  TensorNames& names = config->names;
  names.embedding = "transformer.word_embeddings";
  names.layers = "transformer.h";
  names.qkv = "self_attention.query_key_value";
  names.o = "self_attention.dense";
  names.up = "mlp.dense_h_to_4h";
  names.down = "mlp.dense_4h_to_h";
  names.final_norm = "transformer.ln_f";
  if (config->block == BlockKind::kParallelTwoNorms) {
    names.attention_norm = "ln_attn";
    names.mlp_norm = "ln_mlp";
  }
}

Status ReadFalcon(const JsonField& fields, const FamilyDefaults& defaults, ModelConfig* config) {
  ASSIGN_OR_RETURN(const std::string activation, fields["activation"].Text("", kNameBytes));
  if (!activation.empty() && activation != "gelu") {
    return fields.Unsupported(
        fmt::format("activation is {}; kvcake computes gelu here", activation));
  }
  RETURN_IF_ERROR(ReadShape(fields, config));
  RETURN_IF_ERROR(ReadBlock(fields, config));
  RETURN_IF_ERROR(CheckHeads(fields, *config, "num_kv_heads"));
  DescribeFalcon(config);
  ASSIGN_OR_RETURN(const bool bias, fields["bias"].Flag(false));
  config->qkv_bias = config->o_bias = config->mlp_bias = bias;
  ASSIGN_OR_RETURN(config->tie_embeddings,
                   fields["tie_word_embeddings"].Flag(defaults.tie_embeddings));
  ASSIGN_OR_RETURN(const int context,
                   fields["max_position_embeddings"].Int(1, kMaxPositions, defaults.max_positions));
  ASSIGN_OR_RETURN(const bool alibi, fields["alibi"].Flag(false));
  config->position = alibi ? PositionKind::kAlibi : PositionKind::kRope;
  if (!alibi) {
    ASSIGN_OR_RETURN(config->rope, ReadRope(fields, context, defaults.rope_theta));
  }
  SetContext(context, config);
  return {};
}

void WriteFalcon(const ModelConfig& c, json* out) {
  const bool grouped = c.block == BlockKind::kParallelTwoNorms ||
                       (c.block == BlockKind::kParallel && c.kv_heads != 1);
  *out = {{"activation", "gelu"},
          {"hidden_size", c.hidden_size},
          {"ffn_hidden_size", c.intermediate_size},
          {"num_hidden_layers", c.layers},
          {"num_attention_heads", c.heads},
          {"num_kv_heads", c.kv_heads},
          {"vocab_size", c.vocab_size},
          {"max_position_embeddings", MaxPositionEmbeddings(c)},
          {"layer_norm_epsilon", c.norm_eps},
          {"tie_word_embeddings", c.tie_embeddings},
          {"alibi", c.position == PositionKind::kAlibi},
          {"bias", c.qkv_bias},
          {"multi_query", c.kv_heads == 1},
          {"parallel_attn", c.block != BlockKind::kSequential},
          {"new_decoder_architecture", grouped},
          {"num_ln_in_parallel_attn", c.block == BlockKind::kParallelTwoNorms ? 2 : 1}};
  if (c.position == PositionKind::kRope) WriteRope(c.rope, out);
}

}  // namespace kvcake
