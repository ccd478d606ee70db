#include "model/synth.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "model/safetensors.h"

namespace kvcake {
namespace {

using testing::HasSubstr;

class SynthTest : public testing::Test {
 protected:
  void SetUp() override {
    root_ = testing::TempDir() + "/kvcake_synth_" +
            testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(root_);
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  std::string root_;
};

Digest DigestOf(const std::string& dir) {
  const auto files = TensorFiles::Open(dir);
  EXPECT_TRUE(files) << files.error().message;
  return WeightsDigest(*files);
}

TEST_F(SynthTest, ConfigSurvivesTheDisk) {
  for (const std::string& name : SynthArchNames()) {
    const auto arch = SynthArch(name);
    ASSERT_TRUE(arch);
    // The published shape but for its depth and vocabulary, which only cost time here.
    ModelConfig config = *arch;
    config.vocab_size = 300;
    config.hidden_size = 32;
    config.intermediate_size = 48;
    const std::string dir = root_ + "/" + name;
    ASSERT_TRUE(WriteSynthModel(config, dir, {.layers = 1}));
    const auto loaded = LoadModelConfig(dir);
    ASSERT_TRUE(loaded) << loaded.error().message;
    EXPECT_EQ(loaded->heads, arch->heads);
    EXPECT_EQ(loaded->kv_heads, arch->kv_heads);
    EXPECT_EQ(loaded->head_dim, arch->head_dim);
    EXPECT_EQ(loaded->layers, 1);
    EXPECT_EQ(loaded->max_positions, arch->max_positions);
    EXPECT_EQ(loaded->tie_embeddings, arch->tie_embeddings);
    EXPECT_EQ(loaded->rope.kind, arch->rope.kind);
    EXPECT_EQ(loaded->rope.theta, arch->rope.theta);
    EXPECT_EQ(loaded->rope.factor, arch->rope.factor);
    EXPECT_EQ(loaded->bos_token, kSynthBos);
    EXPECT_EQ(loaded->eos_tokens, std::vector<int32_t>{kSynthEos});
    const auto files = TensorFiles::Open(dir);
    ASSERT_TRUE(files) << files.error().message;
    int64_t elements = 0;
    for (const auto& [tensor, view] : files->tensors()) elements += view.elements();
    EXPECT_EQ(elements, loaded->parameters());
  }
}

TEST_F(SynthTest, HasThePublishedSizes) {
  EXPECT_EQ(SynthArch("smollm2-135m")->parameters(), 134515008);
  EXPECT_EQ(SynthArch("smollm2-360m")->parameters(), 361821120);
  EXPECT_EQ(SynthArch("llama-3.2-1b")->parameters(), 1235814400);
  EXPECT_EQ(SynthArch("llama-3.2-3b")->parameters(), 3212749824);
  EXPECT_EQ(SynthArch("llama-3.1-8b")->parameters(), 8030261248);
  EXPECT_EQ(SynthArch("llama-2-7b")->parameters(), 6738415616);
  const auto unknown = SynthArch("gpt-5");
  ASSERT_FALSE(unknown);
  EXPECT_THAT(unknown.error().message, HasSubstr("smollm2-135m"));
}

TEST_F(SynthTest, IsAFunctionOfTheSeedAlone) {
  ASSERT_TRUE(WriteSynthModel("tiny", root_ + "/a", {.threads = 1}));
  ASSERT_TRUE(WriteSynthModel("tiny", root_ + "/b", {.max_shard_bytes = 40000, .threads = 3}));
  ASSERT_TRUE(WriteSynthModel("tiny", root_ + "/c", {.seed = 2}));
  EXPECT_TRUE(std::filesystem::exists(root_ + "/b/model.safetensors.index.json"));
  EXPECT_FALSE(std::filesystem::exists(root_ + "/b/model.safetensors"));
  EXPECT_EQ(DigestOf(root_ + "/a"), DigestOf(root_ + "/b"));
  EXPECT_NE(DigestOf(root_ + "/a"), DigestOf(root_ + "/c"));
}

TEST_F(SynthTest, WeightsAreNormal) {
  ASSERT_TRUE(WriteSynthModel("tiny", root_));
  const auto files = TensorFiles::Open(root_);
  ASSERT_TRUE(files);
  const auto moments = [&](const std::string& name) {
    const TensorView& view = files->tensors().at(name);
    double sum = 0, squares = 0;
    for (size_t i = 0; i < view.bytes.size(); i += 2) {
      uint16_t half;
      std::memcpy(&half, view.bytes.data() + i, sizeof(half));
      const uint32_t bits = static_cast<uint32_t>(half) << 16;
      float value;
      std::memcpy(&value, &bits, sizeof(value));
      sum += value;
      squares += static_cast<double>(value) * value;
    }
    const auto n = static_cast<double>(view.elements());
    return std::pair(sum / n, std::sqrt(squares / n));
  };
  const auto [mean, deviation] = moments("model.embed_tokens.weight");
  EXPECT_NEAR(mean, 0, 0.0006);
  EXPECT_NEAR(deviation, 0.02, 0.0004);
  EXPECT_NEAR(moments("model.layers.1.self_attn.q_proj.weight").second, 0.125, 0.006);
  EXPECT_EQ(moments("model.norm.weight"), (std::pair{1.0, 1.0}));
}

TEST_F(SynthTest, RefusesToOverwriteAndToFillTheDisk) {
  std::filesystem::create_directories(root_);
  std::ofstream(root_ + "/precious") << "x";
  const auto occupied = WriteSynthModel("tiny", root_);
  ASSERT_FALSE(occupied);
  EXPECT_THAT(occupied.error().message, HasSubstr("not empty"));
  ModelConfig huge = *SynthArch("llama-3.1-8b");
  huge.intermediate_size = 1 << 20;
  const auto refused = WriteSynthModel(huge, root_ + "/huge", {.layers = 4096});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kResourceExhausted);
  EXPECT_TRUE(std::filesystem::is_empty(root_ + "/huge"));
  EXPECT_FALSE(WriteSynthModel("tiny", root_ + "/x", {.layers = -1}));
}

}  // namespace
}  // namespace kvcake
