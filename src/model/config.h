// What a model directory's config.json says, by meaning.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace kvcake {

struct RopeConfig {
  enum class Kind { kPlain, kLinear, kLlama3 };
  Kind kind = Kind::kPlain;
  double theta = 10000.0;
  double factor = 1.0;  // linear, llama3
  // llama3 only.
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
  int original_max_positions = 8192;
};

struct ModelConfig {
  int hidden_size = 0;
  int intermediate_size = 0;
  int layers = 0;
  int heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int vocab_size = 0;
  int max_positions = 0;
  double rms_norm_eps = 1e-5;
  bool tie_embeddings = false;
  RopeConfig rope;
  int32_t bos_token = -1;           // -1: none
  std::vector<int32_t> eos_tokens;  // config.json, or generation_config.json where it has them

  int64_t parameters() const;  // embeddings counted once when tied
};

// Reads DIR/config.json and DIR/generation_config.json (optional). What kvcake cannot run exactly
// is refused by name (kUnsupported); a missing or senseless field is kInvalidArgument and names it.
Result<ModelConfig> LoadModelConfig(const std::string& dir);

}  // namespace kvcake
