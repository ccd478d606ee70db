#include "model/identity.h"

#include <fmt/core.h>

namespace kvcake {

namespace {

// Printed exactly (hexadecimal floats), so that equal text means equal numbers.
std::string Exact(double x) { return fmt::format("{:a}", x); }

const char* RopeKindName(RopeConfig::Kind kind) {
  switch (kind) {
    case RopeConfig::Kind::kPlain:
      return "plain";
    case RopeConfig::Kind::kLinear:
      return "linear";
    case RopeConfig::Kind::kYarn:
      return "yarn";
    case RopeConfig::Kind::kLlama3:
      return "llama3";
  }
  return "";
}

const char* BlockKindName(BlockKind kind) {
  switch (kind) {
    case BlockKind::kSequential:
      return "sequential";
    case BlockKind::kParallel:
      return "parallel";
    case BlockKind::kParallelTwoNorms:
      return "parallel-two-norms";
  }
  return "";
}

void AddPosition(const ModelConfig& config, KvIdentity* identity) {
  if (config.position == PositionKind::kAlibi) {
    identity->Add("positions", "alibi-bf16");
    return;
  }
  const RopeConfig& rope = config.rope;
  identity->Add("rope", RopeKindName(rope.kind)).Add("rope_theta", Exact(rope.theta));
  if (rope.kind != RopeConfig::Kind::kPlain) identity->Add("rope_factor", Exact(rope.factor));
  if (rope.kind == RopeConfig::Kind::kLlama3) {
    identity->Add("rope_low_freq_factor", Exact(rope.low_freq_factor))
        .Add("rope_high_freq_factor", Exact(rope.high_freq_factor))
        .Add("rope_original_max_positions", rope.original_max_positions);
  }
  if (rope.kind == RopeConfig::Kind::kYarn) {
    identity->Add("rope_beta_fast", Exact(rope.beta_fast))
        .Add("rope_beta_slow", Exact(rope.beta_slow))
        .Add("rope_truncate", rope.truncate)
        .Add("rope_attention_factor", Exact(rope.attention_factor))
        .Add("rope_original_max_positions", rope.original_max_positions);
  }
}

// What a plain Llama does not have has a field only where it is.
void AddBeyondLlama(const ModelConfig& config, KvIdentity* identity) {
  if (config.qk_norm) identity->Add("qk_norm", "rms");
  if (config.block != BlockKind::kSequential) {
    identity->Add("block", BlockKindName(config.block));
  }
  if (config.mlp == MlpKind::kGelu) identity->Add("mlp", "gelu");
  if (config.experts.count > 0) {
    identity->Add("experts", config.experts.count)
        .Add("experts_per_token", config.experts.per_token)
        .Add("experts_normalized", config.experts.normalized);
  }
  if (config.qkv == QkvKind::kFused) identity->Add("qkv", "fused-by-kv-head");
  if (config.qkv_bias) identity->Add("qkv_bias", 1);
  if (config.o_bias) identity->Add("o_bias", 1);
  if (config.mlp_bias) identity->Add("mlp_bias", 1);
}

}  // namespace

KvIdentity MakeIdentity(const ModelConfig& config, const KvLayout& layout,
                        const Digest& weights_digest, WeightFormat weights, int arithmetic,
                        std::string_view lossy_lineage) {
  KvIdentity identity;
  identity.Add("arch", config.family)
      .Add("layers", config.layers)
      .Add("hidden", config.hidden_size)
      .Add("heads", config.heads)
      .Add("kv_heads", config.kv_heads)
      .Add("head_dim", config.head_dim)
      .Add("intermediate", config.intermediate_size)
      .Add("vocab", config.vocab_size)
      .Add(config.norm == NormKind::kRms ? "rms_norm_eps" : "layer_norm_eps",
           Exact(config.norm_eps));
  AddPosition(config, &identity);
  AddBeyondLlama(config, &identity);
  identity.Add("weights_digest", ToHex(weights_digest))
      .Add("weights", WeightFormatName(weights))
      .Add("kv", "bf16")
      .Add("chunk_tokens", layout.chunk_tokens)
      .Add("layout", "v1")
      .Add("shard", "all");
  if (arithmetic > 0) identity.Add("arithmetic", arithmetic);
  if (!lossy_lineage.empty()) identity.Add("lossy", lossy_lineage);
  return identity;
}

}  // namespace kvcake
