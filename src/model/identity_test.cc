#include "model/identity.h"

#include <gtest/gtest.h>

#include <set>

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

}  // namespace
}  // namespace kvcake
