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

struct SynthOptions {
  int layers = 0;  // 0: the architecture's own
  uint64_t seed = 1;
  uint64_t max_shard_bytes = 4ull << 30;  // a larger model is written as shards with an index
  int threads = 0;                        // 0: every usable core
};

std::vector<std::string> SynthArchNames();
// kInvalidArgument lists the names known.
Result<ModelConfig> SynthArch(std::string_view name);

// Writes config.json, generation_config.json, tokenizer.json (the 256 bytes, BOS and EOS) and bf16
// safetensors to `dir`, which is made if need be and must be empty; config.json comes last, so that
// an interrupted write is no model. The same seed gives the same bytes for any number of threads.
// kResourceExhausted, before anything is written, when the disk is too small.
Status WriteSynthModel(const ModelConfig& config, const std::string& dir,
                       const SynthOptions& options = {});
Status WriteSynthModel(std::string_view arch, const std::string& dir,
                       const SynthOptions& options = {});

}  // namespace kvcake
