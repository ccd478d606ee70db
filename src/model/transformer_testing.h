// For tests of the forward pass: tiny models of every family with random weights, and their pages.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/bf16.h"
#include "model/family.h"
#include "model/tensor_list.h"
#include "model/transformer.h"
#include "ops/paths_testing.h"

namespace kvcake {

inline ModelConfig TinyConfig() {
  ModelConfig c;
  c.hidden_size = 64;
  c.intermediate_size = 96;
  c.layers = 3;
  c.heads = 6;
  c.kv_heads = 2;
  c.head_dim = 16;
  c.vocab_size = 101;
  c.max_positions = 4096;
  c.tie_embeddings = true;
  return c;
}

inline ModelConfig TinyFalcon(BlockKind block, int kv_heads, bool alibi, bool bias) {
  ModelConfig c = TinyConfig();
  c.head_dim = 16;
  c.heads = 6;
  c.hidden_size = 96;
  c.intermediate_size = 4 * 96;
  c.layers = 2;
  c.kv_heads = kv_heads;
  c.block = block;
  DescribeFalcon(&c);
  c.qkv_bias = c.o_bias = c.mlp_bias = bias;
  if (alibi) c.position = PositionKind::kAlibi;
  return c;
}

// One of every family and variant.
inline std::vector<std::pair<std::string, ModelConfig>> TinyZoo() {
  std::vector<std::pair<std::string, ModelConfig>> zoo;
  const auto add = [&](const char* name, ModelConfig config, auto change) {
    change(config);
    zoo.emplace_back(name, std::move(config));
  };
  const auto same = [](ModelConfig&) {};
  add("llama", TinyConfig(), same);
  add("llama untied multi-head", TinyConfig(), [](ModelConfig& c) {
    c.tie_embeddings = false;
    c.kv_heads = 6;
    c.rope.theta = 500000;
  });
  add("llama with biases", TinyConfig(),
      [](ModelConfig& c) { c.qkv_bias = c.o_bias = c.mlp_bias = true; });
  add("qwen2", TinyConfig(), [](ModelConfig& c) {
    c.family = "qwen2";
    c.qkv_bias = true;
  });
  add("qwen3", TinyConfig(), [](ModelConfig& c) {
    c.family = "qwen3";
    c.head_dim = 32;
    c.qk_norm = true;
  });
  add("mixture of experts", TinyConfig(), [](ModelConfig& c) {
    c.family = "qwen3_moe";
    c.qk_norm = true;
    NameQwenExperts(&c.names);
    c.experts = {.count = 8, .per_token = 3, .normalized = false};
    c.intermediate_size = 48;
  });
  add("falcon 7b", TinyFalcon(BlockKind::kParallel, 1, false, false), same);
  add("refinedweb 1b", TinyFalcon(BlockKind::kSequential, 6, true, true), same);
  add("falcon 40b", TinyFalcon(BlockKind::kParallelTwoNorms, 2, false, false), same);
  add("falcon 40b, biases, ALiBi", TinyFalcon(BlockKind::kParallelTwoNorms, 3, true, true), same);
  add("falcon 11b", TinyFalcon(BlockKind::kParallel, 3, false, false), same);
  return zoo;
}

// Those that a path runs: CUDA no mixtures of experts.
inline std::vector<std::pair<std::string, ModelConfig>> TinyZooOn(NumericPath path) {
  auto zoo = TinyZoo();
  std::erase_if(zoo, [&](const auto& row) { return OnCuda(path) && row.second.experts.count > 0; });
  return zoo;
}

// Random weights of a configuration, by name.
class RandomWeights {
 public:
  explicit RandomWeights(const ModelConfig& config) {
    using Role = TensorSpec::Role;
    std::mt19937 rng(7);
    for (const TensorSpec& tensor : ListTensors(config)) {
      const bool matrix = tensor.role == Role::kWeight || tensor.role == Role::kResidual;
      const float scale = matrix ? 1.0f / std::sqrt(static_cast<float>(tensor.shape[1]))
                          : tensor.role == Role::kEmbedding ? 1.0f
                                                            : 0.3f;
      auto values = RandomFloats(rng, tensor.elements(), scale);
      std::vector<uint16_t>& bits = tensors_[tensor.name];
      for (float value : values) {
        bits.push_back(F32ToBf16(value + (tensor.role == Role::kNorm ? 1.0f : 0.0f)));
      }
    }
  }

  WeightSource Source() {
    return {.get = [this](const std::string& name,
                          std::span<const int64_t> shape) -> Result<TensorView> {
              const auto found = tensors_.find(name);
              if (found == tensors_.end()) return Fail(ErrorCode::kNotFound, "no {}", name);
              return TensorView{DType::kBf16,
                                {shape.begin(), shape.end()},
                                std::as_bytes(std::span(found->second))};
            },
            .digest = []() -> Result<Digest> { return Digest{1}; }};
  }
  // In f32, for the reference.
  std::vector<float> Get(const std::string& name) const {
    std::vector<float> out;
    for (uint16_t bits : tensors_.at(name)) out.push_back(Bf16ToF32(bits));
    return out;
  }
  std::map<std::string, std::vector<uint16_t>>& tensors() { return tensors_; }

 private:
  std::map<std::string, std::vector<uint16_t>> tensors_;
};

// A model with its pages and threads.
struct Rig {
  Rig(const ModelConfig& config, NumericPath path, int threads, int chunk_tokens = 32,
      WeightFormat format = WeightFormat::kBf16, bool enforce_eager = false)
      : weights(config),
        workers(threads),
        pages(std::move(PagePool::Create(TransformerModel::LayoutFor(config, chunk_tokens), 4 << 20,
                                         PageMemoryOf(path).value())
                            .value())),
        model(std::move(TransformerModel::Create(config, weights.Source(), *pages, workers,
                                                 {.max_batch_tokens = 512,
                                                  .path = path,
                                                  .weights = format,
                                                  .enforce_eager = enforce_eager})
                            .value())) {}

  // Pages for `tokens` tokens, full of NaN.
  PageTable Draw(int64_t tokens) {
    PageTable table;
    const KvLayout& layout = pages->layout();
    for (int64_t t = 0; t < tokens; t += layout.chunk_tokens) {
      table.push_back(*pages->Draw());
      SpoilPage(model->numeric_path(), *pages, table.back().id());
    }
    return table;
  }

  RandomWeights weights;
  ThreadPool workers;
  std::unique_ptr<PagePool> pages;
  std::unique_ptr<TransformerModel> model;
};

inline std::vector<int32_t> Prompt(int seed, int64_t n, int vocab = 101) {
  std::mt19937 rng(seed);
  std::vector<int32_t> tokens(n);
  for (int32_t& token : tokens) token = static_cast<int32_t>(rng() % vocab);
  return tokens;
}

inline std::vector<float> RunAll(Rig& rig, const std::vector<int32_t>& tokens,
                                 const std::vector<PageId>& pages) {
  const Slice slice{.tokens = tokens, .pages = pages, .logits = Slice::Logits::kAll};
  const auto logits = rig.model->Forward(std::span(&slice, 1)).value();
  return {logits.begin(), logits.end()};
}

// The bytes of the KV cache of [0, tokens).
inline std::vector<uint16_t> KvOf(NumericPath path, const PagePool& pool,
                                  std::span<const PageId> pages, int64_t tokens) {
  const KvLayout& layout = pool.layout();
  std::vector<uint16_t> kv;
  for (int layer = 0; layer < layout.layers; ++layer) {
    std::vector<std::vector<uint16_t>> slabs;
    for (int64_t t = 0; t < tokens; t += layout.chunk_tokens) {
      slabs.push_back(FromKernels(path, pool.Slab(pages[slabs.size()], layer),
                                  2 * static_cast<int64_t>(layout.plane_elements())));
    }
    for (int plane = 0; plane < 2 * layout.kv_heads; ++plane) {
      for (int64_t t = 0; t < tokens; ++t) {
        const auto from = slabs[t / layout.chunk_tokens].begin() +
                          (plane * layout.chunk_tokens + t % layout.chunk_tokens) * layout.head_dim;
        kv.insert(kv.end(), from, from + layout.head_dim);
      }
    }
  }
  return kv;
}
inline std::vector<uint16_t> KvOf(const Rig& rig, std::span<const PageId> pages, int64_t tokens) {
  return KvOf(rig.model->numeric_path(), *rig.pages, pages, tokens);
}

inline bool SameBits(std::span<const float> a, const float* b) {
  return std::memcmp(a.data(), b, a.size_bytes()) == 0;
}

}  // namespace kvcake
