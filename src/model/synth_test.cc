#include "model/synth.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/temp_dir_testing.h"
#include "model/safetensors.h"
#include "model/tensor_scan.h"
#include "model/weights.h"

namespace kvcake {
namespace {

using testing::HasSubstr;

class SynthTest : public testing::Test {
 protected:
  const TempDir temp_;
  const std::string root_ = temp_.path();
};

Digest DigestOf(const std::string& dir) {
  const auto files = TensorFiles::Open(dir);
  EXPECT_TRUE(files) << files.error().message;
  return TensorScan(*files).WeightsDigest();
}

// A million numbers are written at a time.
TEST_F(SynthTest, AFileEndsWhereItsLastMatrixDoes) {
  ModelConfig config = SynthArch("tiny").value();
  config.layers = 1;
  config.tie_embeddings = true;
  config.hidden_size = 1024;
  config.vocab_size = 1030;
  const std::string dir = root_ + "/model";
  ASSERT_TRUE(WriteSynthModel(config, dir));
  const auto files = TensorFiles::Open(dir);
  ASSERT_TRUE(files) << files.error().message;
  uintmax_t bytes = 0;
  for (const auto& entry : std::filesystem::directory_iterator(dir)) {
    if (entry.path().extension() == ".safetensors") bytes += entry.file_size();
  }
  EXPECT_LT(bytes, 2 * static_cast<uintmax_t>(config.parameters()) + (1 << 14)) << "and a header";
}

TEST_F(SynthTest, ConfigSurvivesTheDisk) {
  for (const std::string& name : SynthArchNames()) {
    const auto arch = SynthArch(name);
    ASSERT_TRUE(arch);
    // The published shape but for its depth and vocabulary, which only cost time here.
    ModelConfig config = *arch;
    config.layers = 1;
    config.vocab_size = 300;
    config.intermediate_size = 48;
    if (config.family != "falcon") config.hidden_size = 32;
    const std::string dir = root_ + "/" + name;
    const auto written = WriteSynthModel(config, dir);
    ASSERT_TRUE(written) << name << ": " << written.error().message;
    const auto loaded = LoadModelConfig(dir);
    ASSERT_TRUE(loaded) << loaded.error().message;
    EXPECT_EQ(*loaded, config) << name;
    const auto files = TensorFiles::Open(dir);
    ASSERT_TRUE(files) << files.error().message;
    int64_t elements = 0;
    for (const auto& [tensor, view] : files->tensors()) elements += view.elements();
    EXPECT_EQ(elements, loaded->parameters());
    EXPECT_TRUE(CheckWeights(*loaded, WeightSource::FromFiles(*files))) << name;
    EXPECT_TRUE(UnusedTensors(*loaded, *files).empty()) << name;
    config.layers = 0;
    EXPECT_FALSE(UnusedTensors(config, *files).empty()) << name << ": those of the layer";
  }
}

TEST_F(SynthTest, HasThePublishedSizes) {
  EXPECT_EQ(SynthArch("smollm2-135m")->parameters(), 134515008);
  EXPECT_EQ(SynthArch("smollm2-360m")->parameters(), 361821120);
  EXPECT_EQ(SynthArch("llama-3.2-1b")->parameters(), 1235814400);
  EXPECT_EQ(SynthArch("llama-3.2-3b")->parameters(), 3212749824);
  EXPECT_EQ(SynthArch("llama-3.1-8b")->parameters(), 8030261248);
  EXPECT_EQ(SynthArch("llama-2-7b")->parameters(), 6738415616);
  EXPECT_EQ(SynthArch("longalpaca-7b")->parameters(), 6738423808);
  EXPECT_EQ(SynthArch("longalpaca-13b")->parameters(), 13015874560);
  EXPECT_EQ(SynthArch("llama-3.1-70b")->parameters(), 70553706496);
  EXPECT_EQ(SynthArch("llama-7b")->parameters(), 6738415616);
  EXPECT_EQ(SynthArch("llama-13b")->parameters(), 13015864320);
  EXPECT_EQ(SynthArch("llama-30b")->parameters(), 32528943616);
  EXPECT_EQ(SynthArch("llama-65b")->parameters(), 65285660672);
  EXPECT_EQ(SynthArch("falcon-1b")->parameters(), 1311625216);
  EXPECT_EQ(SynthArch("falcon-7b")->parameters(), 6921720704);
  EXPECT_EQ(SynthArch("falcon-40b")->parameters(), 41303293952);
  EXPECT_EQ(SynthArch("qwen2.5-0.5b")->parameters(), 494032768);
  EXPECT_EQ(SynthArch("qwen3-0.6b")->parameters(), 596049920);
  EXPECT_EQ(SynthArch("qwen3-30b-a3b")->parameters(), 30532122624);
  EXPECT_EQ(SynthArch("mixtral-8x7b")->parameters(), 46702792704);
  EXPECT_EQ(SynthArch("mistral-7b")->parameters(), 7248023552);
  EXPECT_EQ(SynthArch("longalpaca-7b")->max_positions, 32768);
  EXPECT_EQ(SynthArch("llama-7b-mqa")->kv_heads, 1);
  EXPECT_EQ(SynthArch("llama-7b-gqa8")->kv_heads, 8);
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
  const auto refused = WriteSynthModel("llama-3.1-8b", root_ + "/huge",
                                       {.shape = {.layers = 4096, .intermediate_size = 1 << 20}});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kResourceExhausted);
  EXPECT_FALSE(std::filesystem::exists(root_ + "/huge"));
}

TEST_F(SynthTest, ShrinksAndRefusesWhatNoModelHas) {
  const auto heads = SynthArch("llama-2-7b", {.layers = 2, .heads = 4, .context = 512});
  ASSERT_TRUE(heads);
  EXPECT_EQ(heads->layers, 2);
  EXPECT_EQ(heads->kv_heads, 4);
  EXPECT_EQ(heads->head_dim, 128);
  EXPECT_EQ(heads->max_positions, 512);
  const SynthShape small = {
      .layers = 1, .hidden_size = 64, .intermediate_size = 64, .heads = 4, .vocab_size = 300};
  EXPECT_EQ(SynthArch("falcon-7b", small)->head_dim, 16);
  EXPECT_TRUE(WriteSynthModel("falcon-1b", root_ + "/falcon", {.shape = small}));
  const auto refuse = [&](const char* arch, const SynthShape& shape, const char* part) {
    const auto status = WriteSynthModel(arch, root_ + "/no", {.shape = shape});
    ASSERT_FALSE(status) << part;
    EXPECT_THAT(status.error().message, HasSubstr(part));
    EXPECT_FALSE(std::filesystem::exists(root_ + "/no"));
  };
  refuse("tiny", {.layers = -1}, "layers -1");
  refuse("tiny", {.layers = 5000}, "layers 5000");
  refuse("tiny", {.hidden_size = 72}, "hidden_size");
  refuse("tiny", {.heads = 5}, "num_attention_heads");
  refuse("tiny", {.head_dim = 24}, "head_dim");
  refuse("tiny", {.vocab_size = 100}, "vocabulary");
  refuse("tiny", {.kv_heads = 3}, "num_key_value_heads");
  refuse("falcon-7b", {.head_dim = 32}, "falcon");
  refuse("falcon-7b", {.hidden_size = 4528}, "hidden_size");
  refuse("longalpaca-7b", {.context = 1001}, "llama");
}

}  // namespace
}  // namespace kvcake
