// What a model is: the one description that the forward pass, the weights' loader and the KV
// cache's identity read, whatever the family. A family (family.h) only translates its config.json
// into it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace kvcake {

struct RopeConfig {
  enum class Kind { kPlain, kLinear, kLlama3, kYarn };
  Kind kind = Kind::kPlain;
  double theta = 10000.0;
  double factor = 1.0;                // all but plain
  int original_max_positions = 8192;  // llama3, yarn
  // llama3 only.
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
  // yarn only.
  double beta_fast = 32.0;        // pairs that turn more often in the original context are kept
  double beta_slow = 1.0;         // those that turn less often are slowed down by `factor`
  bool truncate = true;           // the bounds between them are whole pairs
  double attention_factor = 1.0;  // of all cosines and sines

  bool operator==(const RopeConfig&) const = default;
};

// How attention knows positions: keys and queries are rotated, or scores grow with the key's
// position (keys are cached as they are).
enum class PositionKind { kRope, kAlibi };
enum class NormKind { kRms, kLayer };  // kLayer: the mean is taken away, and there is a bias
// kSequential: x += attention(norm(x)); x += mlp(norm'(x)).
// kParallel: x += attention(norm(x)) + mlp(norm(x)). kParallelTwoNorms: ... + mlp(norm'(x)).
enum class BlockKind { kSequential, kParallel, kParallelTwoNorms };
enum class MlpKind { kSwiGlu, kGelu };  // kGelu: by the error function, no gate
// A layer's MLP is those of the likeliest experts of each token, whose outputs are added up by
// weights that a router gives them.
struct ExpertsConfig {
  int count = 0;  // 0: one MLP for all tokens
  int per_token = 0;
  bool normalized = false;  // the weights of those add up to 1

  bool operator==(const ExpertsConfig&) const = default;
};
// Separate projections; or one tensor with, for each KV head, the query heads that share it, then
// its key head, then its value head. Multi-query is one such group, multi-head as many as heads.
enum class QkvKind { kSeparate, kFused };

// What tensors are called, without ".weight" and ".bias". Layers' names follow
// "<layers>.<number>.".
struct TensorNames {
  std::string_view embedding = "model.embed_tokens";
  std::string_view layers = "model.layers";
  std::string_view attention_norm = "input_layernorm";
  std::string_view q = "self_attn.q_proj";
  std::string_view k = "self_attn.k_proj";
  std::string_view v = "self_attn.v_proj";
  std::string_view qkv = {};  // QkvKind::kFused
  std::string_view q_norm = "self_attn.q_norm";
  std::string_view k_norm = "self_attn.k_norm";
  std::string_view o = "self_attn.o_proj";
  std::string_view mlp_norm = "post_attention_layernorm";  // but not of BlockKind::kParallel
  std::string_view gate = "mlp.gate_proj";                 // MlpKind::kSwiGlu
  std::string_view up = "mlp.up_proj";
  std::string_view down = "mlp.down_proj";
  // With experts: the three above follow "<experts>.<number>.".
  std::string_view router = {};
  std::string_view experts = {};
  std::string_view final_norm = "model.norm";
  std::string_view head = "lm_head";

  bool operator==(const TensorNames&) const = default;
};

// The defaults are Llama's.
struct ModelConfig {
  std::string_view family = "llama";  // config.json's model_type, as family.h spells it
  int hidden_size = 0;
  int intermediate_size = 0;  // of each expert, where there are some
  int layers = 0;
  int heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int vocab_size = 0;
  int max_positions = 0;   // linear RoPE and yarn stretch a context by their factor
  int sliding_window = 0;  // tokens that some layer sees of more max_positions; 0: all see all
  NormKind norm = NormKind::kRms;
  double norm_eps = 1e-5;
  bool qk_norm = false;  // RMS norm of every query and key head, before RoPE
  PositionKind position = PositionKind::kRope;
  RopeConfig rope = {};  // PositionKind::kRope only
  BlockKind block = BlockKind::kSequential;
  MlpKind mlp = MlpKind::kSwiGlu;
  ExpertsConfig experts = {};
  QkvKind qkv = QkvKind::kSeparate;
  bool qkv_bias = false;
  bool o_bias = false;
  bool mlp_bias = false;
  bool tie_embeddings = false;
  TensorNames names = {};
  int32_t bos_token = -1;                // -1: none
  std::vector<int32_t> eos_tokens = {};  // config.json, or generation_config.json where it has them

  bool operator==(const ModelConfig&) const = default;
  int64_t parameters() const;  // embeddings counted once when tied
  // Those that a token meets: all but the experts that it does not go to.
  int64_t active_parameters() const;
};

struct ConfigOptions {
  // Where a window slides, which is not supported, the context ends with it, and the model is
  // exact.
  bool within_window = false;
  // A JSON object whose members stand for those of config.json, as of vLLM's --hf-overrides. One
  // that config.json does not have, and that changes nothing, is kInvalidArgument.
  std::string overrides = {};
};

// Reads DIR/config.json and DIR/generation_config.json (optional). What kvcake cannot run exactly
// as Hugging Face transformers runs it is refused by name (kUnsupported); a missing or senseless
// field is kInvalidArgument and names it.
Result<ModelConfig> LoadModelConfig(const std::string& dir, const ConfigOptions& options = {});
// Whether kvcake's kernels can run the shape; kUnsupported names the field, after `source`.
Status CheckRunnable(const ModelConfig& config, const std::string& source);
// The text of a config.json that LoadModelConfig reads as `config`; kInvalidArgument when its
// family cannot say that.
Result<std::string> ModelConfigJson(const ModelConfig& config);

}  // namespace kvcake
