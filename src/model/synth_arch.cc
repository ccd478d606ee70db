// The published shapes.
#include <fmt/ranges.h>

#include "model/synth.h"

namespace kvcake {

namespace {

struct Arch {
  const char* name;
  ModelConfig config;
};

ModelConfig Llama3(int layers, int hidden, int intermediate, int heads, int head_dim, bool tied,
                   double factor) {
  return {.hidden_size = hidden,
          .intermediate_size = intermediate,
          .layers = layers,
          .heads = heads,
          .kv_heads = 8,
          .head_dim = head_dim,
          .vocab_size = 128256,
          .max_positions = 131072,
          .tie_embeddings = tied,
          .rope = {.kind = RopeConfig::Kind::kLlama3, .theta = 500000, .factor = factor},
          .eos_tokens = {}};
}

ModelConfig SmolLm2(int layers, int hidden, int intermediate, int heads, int kv_heads) {
  return {.hidden_size = hidden,
          .intermediate_size = intermediate,
          .layers = layers,
          .heads = heads,
          .kv_heads = kv_heads,
          .head_dim = 64,
          .vocab_size = 49152,
          .max_positions = 16384,  // published with 8192; twice that, for benches on long prompts
          .tie_embeddings = true,
          .rope = {.theta = 100000},
          .eos_tokens = {}};
}

const std::vector<Arch>& Archs() {
  static const std::vector<Arch> archs = {
      {"tiny",
       {.hidden_size = 64,
        .intermediate_size = 128,
        .layers = 2,
        .heads = 4,
        .kv_heads = 2,
        .head_dim = 16,
        .vocab_size = 512,
        .max_positions = 16384,
        .tie_embeddings = true,
        .rope = {},
        .eos_tokens = {}}},
      {"smollm2-135m", SmolLm2(30, 576, 1536, 9, 3)},
      {"smollm2-360m", SmolLm2(32, 960, 2560, 15, 5)},
      {"llama-3.2-1b", Llama3(16, 2048, 8192, 32, 64, true, 32)},
      {"llama-3.2-3b", Llama3(28, 3072, 8192, 24, 128, true, 32)},
      {"llama-3.1-8b", Llama3(32, 4096, 14336, 32, 128, false, 8)},
      {"llama-2-7b",
       {.hidden_size = 4096,
        .intermediate_size = 11008,
        .layers = 32,
        .heads = 32,
        .kv_heads = 32,
        .head_dim = 128,
        .vocab_size = 32000,
        .max_positions = 4096,
        .rope = {},
        .eos_tokens = {}}},
  };
  return archs;
}

}  // namespace

std::vector<std::string> SynthArchNames() {
  std::vector<std::string> names;
  for (const Arch& arch : Archs()) names.emplace_back(arch.name);
  return names;
}

Result<ModelConfig> SynthArch(std::string_view name) {
  for (const Arch& arch : Archs()) {
    if (name != arch.name) continue;
    ModelConfig config = arch.config;
    config.bos_token = kSynthBos;
    config.eos_tokens = {kSynthEos};
    return config;
  }
  return Fail(ErrorCode::kInvalidArgument, "no architecture {}; there are: {}", name,
              fmt::join(SynthArchNames(), ", "));
}

}  // namespace kvcake
