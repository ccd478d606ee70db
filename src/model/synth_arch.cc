// The published shapes.
#include <fmt/ranges.h>

#include "model/config_limits.h"
#include "model/family.h"
#include "model/synth.h"

namespace kvcake {

namespace {

struct Arch {
  const char* name;
  ModelConfig config;
};

struct Size {
  int layers = 0;
  int hidden = 0;
  int intermediate = 0;
  int heads = 0;
  int kv_heads = 0;
};

ModelConfig Llama(const Size& size, int vocab, int context, double norm_eps) {
  return {.hidden_size = size.hidden,
          .intermediate_size = size.intermediate,
          .layers = size.layers,
          .heads = size.heads,
          .kv_heads = size.kv_heads,
          .head_dim = size.hidden / size.heads,
          .vocab_size = vocab,
          .max_positions = context,
          .norm_eps = norm_eps};
}

ModelConfig Llama1(const Size& size, double norm_eps = 1e-6) {
  return Llama(size, 32000, 2048, norm_eps);
}

ModelConfig Llama3(const Size& size, bool tied, double factor) {
  ModelConfig config = Llama(size, 128256, 131072, 1e-5);
  config.tie_embeddings = tied;
  config.rope = {.kind = RopeConfig::Kind::kLlama3, .theta = 500000, .factor = factor};
  return config;
}

// Published with 8192 positions; more here, so that 16384 tokens leave room for an answer.
ModelConfig SmolLm2(const Size& size) {
  ModelConfig config = Llama(size, 49152, 32768, 1e-5);
  config.tie_embeddings = true;
  config.rope.theta = 100000;
  return config;
}

// Llama 2 with one more token and its positions stretched eightfold.
ModelConfig LongAlpaca(const Size& size) {
  ModelConfig config = Llama(size, 32001, 32768, 1e-5);
  config.rope = {.kind = RopeConfig::Kind::kLinear, .factor = 8};
  return config;
}

ModelConfig Mistral(const Size& size) {  // v0.3: without a window
  ModelConfig config = Llama(size, 32768, 32768, 1e-5);
  config.family = "mistral";
  config.rope.theta = 1e6;
  return config;
}

ModelConfig Qwen(std::string_view family, const Size& size, int head_dim, int context) {
  ModelConfig config = Llama(size, 151936, context, 1e-6);
  config.family = family;
  config.head_dim = head_dim;
  config.tie_embeddings = true;
  config.rope.theta = 1e6;
  config.qkv_bias = family == "qwen2";
  config.qk_norm = family == "qwen3";
  return config;
}

ModelConfig Qwen3Moe(const Size& size, const ExpertsConfig& experts) {
  ModelConfig config = Qwen("qwen3", size, 128, 40960);
  config.family = "qwen3_moe";
  config.tie_embeddings = false;
  config.experts = experts;
  NameQwenExperts(&config.names);
  return config;
}

ModelConfig Mixtral(const Size& size) {
  ModelConfig config = Llama(size, 32000, 32768, 1e-5);
  config.family = "mixtral";
  config.rope.theta = 1e6;
  config.experts = {.count = 8, .per_token = 2, .normalized = true};
  NameMixtralExperts(&config.names);
  return config;
}

ModelConfig Falcon(const Size& size, int vocab, BlockKind block) {
  ModelConfig config = Llama(size, vocab, 2048, 1e-5);
  config.block = block;
  DescribeFalcon(&config);
  config.tie_embeddings = true;
  if (block == BlockKind::kSequential) {
    config.position = PositionKind::kAlibi;
    config.qkv_bias = config.o_bias = config.mlp_bias = true;
  }
  return config;
}

const std::vector<Arch>& Archs() {
  static const std::vector<Arch> archs = [] {
    ModelConfig tiny = Llama({2, 64, 128, 4, 2}, 512, 16384, 1e-5);
    tiny.tie_embeddings = true;
    return std::vector<Arch>{
        {"tiny", tiny},
        {"smollm2-135m", SmolLm2({30, 576, 1536, 9, 3})},
        {"smollm2-360m", SmolLm2({32, 960, 2560, 15, 5})},
        {"llama-3.2-1b", Llama3({16, 2048, 8192, 32, 8}, true, 32)},
        {"llama-3.2-3b", Llama3({28, 3072, 8192, 24, 8}, true, 32)},
        {"llama-2-7b", Llama({32, 4096, 11008, 32, 32}, 32000, 4096, 1e-5)},
        {"longalpaca-7b", LongAlpaca({32, 4096, 11008, 32, 32})},
        {"longalpaca-13b", LongAlpaca({40, 5120, 13824, 40, 40})},
        {"llama-3.1-8b", Llama3({32, 4096, 14336, 32, 8}, false, 8)},
        {"llama-3.1-70b", Llama3({80, 8192, 28672, 64, 8}, false, 8)},
        {"llama-7b", Llama1({32, 4096, 11008, 32, 32})},
        {"llama-7b-mqa", Llama1({32, 4096, 11008, 32, 1})},
        {"llama-7b-gqa8", Llama1({32, 4096, 11008, 32, 8})},
        {"llama-13b", Llama1({40, 5120, 13824, 40, 40})},
        {"llama-30b", Llama1({60, 6656, 17920, 52, 52})},
        {"llama-65b", Llama1({80, 8192, 22016, 64, 64}, 1e-5)},
        {"falcon-1b", Falcon({24, 2048, 8192, 32, 32}, 50304, BlockKind::kSequential)},
        {"falcon-7b", Falcon({32, 4544, 18176, 71, 1}, 65024, BlockKind::kParallel)},
        {"falcon-40b", Falcon({60, 8192, 32768, 128, 8}, 65024, BlockKind::kParallelTwoNorms)},
        {"qwen2.5-0.5b", Qwen("qwen2", {24, 896, 4864, 14, 2}, 64, 32768)},
        {"qwen3-0.6b", Qwen("qwen3", {28, 1024, 3072, 16, 8}, 128, 40960)},
        {"qwen3-30b-a3b", Qwen3Moe({48, 2048, 768, 32, 4}, {128, 8, true})},
        {"mistral-7b", Mistral({32, 4096, 14336, 32, 8})},
        {"mixtral-8x7b", Mixtral({32, 4096, 14336, 32, 8})},
    };
  }();
  return archs;
}

Status Change(const SynthShape& shape, ModelConfig* config) {
  const bool multi_head = config->kv_heads == config->heads;
  struct {
    const char* name;
    int value, max;
    int* field;
  } changes[] = {
      {"layers", shape.layers, kMaxLayers, &config->layers},
      {"hidden size", shape.hidden_size, kMaxDimension, &config->hidden_size},
      {"intermediate size", shape.intermediate_size, kMaxDimension, &config->intermediate_size},
      {"heads", shape.heads, kMaxDimension, &config->heads},
      {"KV heads", shape.kv_heads, kMaxDimension, &config->kv_heads},
      {"head size", shape.head_dim, kMaxDimension, &config->head_dim},
      {"vocabulary", shape.vocab_size, kMaxVocab, &config->vocab_size},
      {"context", shape.context, kMaxPositions, &config->max_positions}};
  for (const auto& change : changes) {
    if (change.value < 0 || change.value > change.max) {
      return Fail(ErrorCode::kInvalidArgument, "{} {}: must be in [1, {}]", change.name,
                  change.value, change.max);
    }
    if (change.value > 0) *change.field = change.value;
  }
  if (multi_head && shape.kv_heads == 0) config->kv_heads = config->heads;
  // Falcon's configurations do not say it.
  const bool derived = config->family == "falcon" && shape.head_dim == 0;
  if (derived && config->hidden_size % config->heads == 0) {
    config->head_dim = config->hidden_size / config->heads;
  }
  return {};
}

}  // namespace

std::vector<std::string> SynthArchNames() {
  std::vector<std::string> names;
  for (const Arch& arch : Archs()) names.emplace_back(arch.name);
  return names;
}

Result<ModelConfig> SynthArch(std::string_view name, const SynthShape& shape) {
  for (const Arch& arch : Archs()) {
    if (name != arch.name) continue;
    ModelConfig config = arch.config;
    RETURN_IF_ERROR(Change(shape, &config));
    config.bos_token = kSynthBos;
    config.eos_tokens = {kSynthEos};
    return config;
  }
  return Fail(ErrorCode::kInvalidArgument, "no architecture {}; there are: {}", name,
              fmt::join(SynthArchNames(), ", "));
}

}  // namespace kvcake
