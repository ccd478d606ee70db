// Model directories of published shapes with random weights, to measure with: real files in every
// respect but their knowledge.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "model/config.h"

namespace kvcake {

// In every synthetic tokenizer, after the 256 bytes.
constexpr int32_t kSynthBos = 256;
constexpr int32_t kSynthEos = 257;

// What to change of a published shape, to shrink it. 0: nothing.
struct SynthShape {
  int layers = 0;
  int hidden_size = 0;
  int intermediate_size = 0;
  int heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int vocab_size = 0;
  int context = 0;
};

struct SynthOptions {
  SynthShape shape = {};  // for shapes by name
  uint64_t seed = 1;
  uint64_t max_shard_bytes = 4ull << 30;  // a larger model is written as shards with an index
  int threads = 0;                        // 0: every usable core
};

std::vector<std::string> SynthArchNames();
// kInvalidArgument lists the names known, or names the change that is out of range. What is not
// changed stays as published, but multi-head shapes stay multi-head, and the head size of Falcons
// follows from the hidden size and the heads.
Result<ModelConfig> SynthArch(std::string_view name, const SynthShape& shape = {});

// Writes config.json, generation_config.json, tokenizer.json (the 256 bytes, BOS and EOS) and bf16
// safetensors to `dir`, which is made if need be and must be empty; config.json comes last, so that
// an interrupted write is no model. The same seed gives the same bytes for any number of threads.
// Nothing is written when kvcake could not run the model (kUnsupported), when its family cannot
// describe it (kInvalidArgument), or when the disk is too small (kResourceExhausted).
Status WriteSynthModel(const ModelConfig& config, const std::string& dir,
                       const SynthOptions& options = {});
Status WriteSynthModel(std::string_view arch, const std::string& dir,
                       const SynthOptions& options = {});

}  // namespace kvcake
