#include "model/identity.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>

#include "model/transformer_testing.h"

namespace kvcake {
namespace {

ChunkKey RootOf(const ModelConfig& config, const Digest& weights = Digest{1},
                std::string_view lossy = "") {
  return MakeIdentity(config, TransformerModel::LayoutFor(config, 32), weights, WeightFormat::kBf16,
                      /*arithmetic=*/0, lossy)
      .Root();
}

TEST(IdentityTest, EveryNumberThatTurnsAHeadIsPartOfIt) {
  using Kind = RopeConfig::Kind;
  std::set<ChunkKey> roots;
  for (const RopeConfig& rope :
       std::initializer_list<RopeConfig>{{},
                                         {.theta = 500000},
                                         {.kind = Kind::kLinear},
                                         {.kind = Kind::kLinear, .factor = 2},
                                         {.kind = Kind::kLlama3},
                                         {.kind = Kind::kLlama3, .factor = 2},
                                         {.kind = Kind::kLlama3, .low_freq_factor = 2},
                                         {.kind = Kind::kLlama3, .high_freq_factor = 8},
                                         {.kind = Kind::kLlama3, .original_max_positions = 4096},
                                         {.kind = Kind::kYarn},
                                         {.kind = Kind::kYarn, .factor = 2},
                                         {.kind = Kind::kYarn, .original_max_positions = 4096},
                                         {.kind = Kind::kYarn, .beta_fast = 16},
                                         {.kind = Kind::kYarn, .beta_slow = 2},
                                         {.kind = Kind::kYarn, .truncate = false},
                                         {.kind = Kind::kYarn, .attention_factor = 1.5}}) {
    ModelConfig config = TinyConfig();
    config.rope = rope;
    roots.insert(RootOf(config));
  }
  EXPECT_EQ(roots.size(), 16u);
}

TEST(IdentityTest, ExpertsArePartOfIt) {
  std::set<ChunkKey> roots;
  for (const ExpertsConfig& experts : std::initializer_list<ExpertsConfig>{
           {}, {4, 2, false}, {4, 2, true}, {4, 3, false}, {5, 2, false}}) {
    ModelConfig config = TinyConfig();
    config.experts = experts;
    roots.insert(RootOf(config));
  }
  EXPECT_EQ(roots.size(), 5u);
}

TEST(IdentityTest, ShapesWeightsAndWhatWasLostArePartOfIt) {
  std::set<ChunkKey> roots = {RootOf(TinyConfig()), RootOf(TinyConfig(), Digest{2}),
                              RootOf(TinyConfig(), Digest{1}, "int8"),
                              RootOf(TinyConfig(), Digest{1}, "kivi")};
  for (int ModelConfig::*const number :
       {&ModelConfig::layers, &ModelConfig::hidden_size, &ModelConfig::heads,
        &ModelConfig::kv_heads, &ModelConfig::head_dim, &ModelConfig::intermediate_size,
        &ModelConfig::vocab_size}) {
    ModelConfig config = TinyConfig();
    config.*number *= 2;
    roots.insert(RootOf(config));
  }
  EXPECT_EQ(roots.size(), 11u);
}

// With another root, all that users keep of a model is lost to them: let that be meant.
TEST(IdentityTest, RootsStayWhatTheyWere) {
  std::map<std::string, std::string> roots = {
      {"llama", "aca461af6278b1b0"},
      {"llama untied multi-head", "85de4e8c27a2df03"},
      {"llama with biases", "9473d39a7d39d1d1"},
      {"qwen2", "8b68a9cead348972"},
      {"qwen3", "1e429face2bad119"},
      {"mixture of experts", "dc42f9fba8b7e461"},
      {"falcon 7b", "49386b71198b088b"},
      {"refinedweb 1b", "5008ed02d77c6ed4"},
      {"falcon 40b", "f6307c5ea20f2dfe"},
      {"falcon 40b, biases, ALiBi", "505170cf4de20b27"},
      {"falcon 11b", "9c65a741c8b2b414"},
      {"linear", "5a882346ad3f009d"},
      {"llama3", "2a06dc9cbfb33e97"},
      {"yarn", "9d39c6ff9b21db8b"},
  };
  auto configs = TinyZoo();
  using Kind = RopeConfig::Kind;
  for (const auto& [name, kind] : std::initializer_list<std::pair<const char*, Kind>>{
           {"linear", Kind::kLinear}, {"llama3", Kind::kLlama3}, {"yarn", Kind::kYarn}}) {
    configs.emplace_back(name, TinyConfig());
    configs.back().second.rope = {.kind = kind, .factor = 2.5};
  }
  for (const auto& [name, config] : configs) {
    EXPECT_EQ(RootOf(config).Hex().substr(0, 16), roots[name]) << name;
  }
}

}  // namespace
}  // namespace kvcake
