// What a model's weights take, and which tensors of its files are none.
#include "model/weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "base/open_descriptors_testing.h"
#include "model/safetensors_testing.h"
#include "model/transformer_testing.h"

namespace kvcake {
namespace {

using nlohmann::json;
using testing::ElementsAre;

using WeightsTest = SafetensorsDirTest;

TEST_F(WeightsTest, TensorsThatTheModelHasNoPlaceForAreNamedAndBuffersAreNot) {
  json header;
  uint64_t at = 0;
  for (const char* name :
       {"model.layers.0.self_attn.rotary_emb.inv_freq", "transformer.h.0.attn.masked_bias",
        "transformer.h.0.attn.bias", "gpt_neox.layers.0.attention.bias", "lm_head.weight",
        "model.norm.weight", "model.layers.0.self_attn.q_proj.bias", "model.layers.9.mlp.up"}) {
    header[name] = Tensor("F32", {1}, at, at + 4);
    at += 4;
  }
  Write("model.safetensors", FileBytes(header.dump(), std::string(at, 'x')));
  const auto files = TensorFiles::Open(dir_);
  ASSERT_TRUE(files) << files.error().message;
  EXPECT_THAT(UnusedTensors(TinyConfig(), *files),
              ElementsAre("model.layers.0.self_attn.q_proj.bias", "model.layers.9.mlp.up"));
}

TEST_F(WeightsTest, OtherTypesTakeWhatTheyTake) {
  for (const auto& [dtype, bytes] : std::vector<std::pair<const char*, int>>{{"BOOL", 1},
                                                                             {"I8", 1},
                                                                             {"U8", 1},
                                                                             {"I16", 2},
                                                                             {"U16", 2},
                                                                             {"I32", 4},
                                                                             {"U32", 4},
                                                                             {"I64", 8},
                                                                             {"U64", 8},
                                                                             {"F64", 8}}) {
    Write("model.safetensors", FileBytes(json{{"buffer", Tensor(dtype, {3}, 0, 3 * bytes)}}.dump(),
                                         std::string(3 * bytes, 'x')));
    const auto files = TensorFiles::Open(dir_);
    EXPECT_TRUE(files) << dtype << ": " << files.error().message;
  }
}

TEST_F(WeightsTest, AFileThatIsMappedIsNotHeldOpen) {
  Write("model.safetensors", FileBytes(json{{"a", Tensor("F32", {1}, 0, 4)}}.dump(), "1234"));
  const size_t before = testing_util::OpenDescriptors();
  const auto files = TensorFiles::Open(dir_);
  ASSERT_TRUE(files) << files.error().message;
  EXPECT_EQ(testing_util::OpenDescriptors(), before);
}

TEST_F(WeightsTest, AFileIsMappedAsLongAsItIsWanted) {
  const auto mapped = [&] {
    std::ifstream maps("/proc/self/maps");
    const std::string all(std::istreambuf_iterator<char>(maps), {});
    return all.find(dir_ + "/model.safetensors") != std::string::npos;
  };
  Write("model.safetensors", FileBytes(json{{"a", Tensor("F32", {1}, 0, 4)}}.dump(), "1234"));
  {
    const auto files = TensorFiles::Open(dir_);
    ASSERT_TRUE(files) << files.error().message;
    EXPECT_TRUE(mapped());
  }
  EXPECT_FALSE(mapped());
  Write("model.safetensors", FileBytes("[]", ""));
  EXPECT_FALSE(TensorFiles::Open(dir_));
  EXPECT_FALSE(mapped());
}

// As the source, but that asking for this weight fails; the error outlives it.
WeightSource Without(const std::string& missing, WeightSource source, const Error* error) {
  source.get = [=, get = source.get](const std::string& name,
                                     std::span<const int64_t> shape) -> Result<TensorView> {
    if (name != missing) return get(name, shape);
    return tl::unexpected(*error);
  };
  return source;
}

// A head in the place of an embedding that is not there is one thing, of one that is wrong another.
TEST(CheckWeightsTest, AnEmbeddingOfAnotherShapeIsNotReplacedByTheHead) {
  ModelConfig untied = TinyConfig();
  untied.tie_embeddings = false;
  RandomWeights weights(untied);
  Error error{ErrorCode::kNotFound, "the embedding"};
  const WeightSource source = Without("model.embed_tokens.weight", weights.Source(), &error);
  EXPECT_TRUE(CheckWeights(TinyConfig(), source));
  EXPECT_FALSE(CheckWeights(untied, source));
  error.code = ErrorCode::kInvalidArgument;
  const Status refused = CheckWeights(TinyConfig(), source);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().message, "the embedding");
}

// A tied model may do without a head, but not with a wrong one.
TEST(LoadWeightsTest, ATiedHeadOfAnotherShapeIsNotTheEmbedding) {
  RandomWeights weights(TinyConfig());
  Error error{ErrorCode::kNotFound, "the head"};
  const WeightSource source = Without("lm_head.weight", weights.Source(), &error);
  ThreadPool workers(1);
  const Compute compute(workers, NumericPath::kF32);
  EXPECT_TRUE(LoadWeights(compute, TinyConfig(), source, WeightFormat::kBf16));
  error.code = ErrorCode::kInvalidArgument;
  const auto refused = LoadWeights(compute, TinyConfig(), source, WeightFormat::kBf16);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().message, "the head");
}

// Files are mapped: what was packed must not stay in memory until all is.
TEST(LoadWeightsTest, WhatWasPackedIsReleasedLayerByLayer) {
  RandomWeights weights(TinyConfig());
  WeightSource source = weights.Source();
  const auto get = source.get;
  std::string log;  // the layers that were read, and each release
  source.get = [&](const std::string& name, std::span<const int64_t> shape) {
    const std::string of = name.starts_with("model.layers.") ? name.substr(13, 1) : "-";
    if (!log.ends_with(of)) log += of;
    return get(name, shape);
  };
  source.release = [&] { log += "r"; };
  ThreadPool workers(1);
  const Compute compute(workers, NumericPath::kF32);
  EXPECT_TRUE(LoadWeights(compute, TinyConfig(), source, WeightFormat::kBf16));
  EXPECT_EQ(log, "-r0r1r2r");
}

// What a machine has room for is decided by it.
TEST(WeightsMemoryTest, EachPartOfWhatAModelTakesIsCounted) {
  ModelConfig config = TinyConfig();
  config.vocab_size = 100'000;
  const auto bytes = [&](int rows, int logit_rows, WeightFormat weights) {
    return static_cast<int64_t>(TransformerModel::MemoryFor(
        config, {.max_batch_tokens = rows, .max_logit_rows = logit_rows, .weights = weights}));
  };
  const auto bf16 = WeightFormat::kBf16, int8 = WeightFormat::kInt8;
  EXPECT_GT(bytes(512, 1, bf16), 2 * config.parameters());
  EXPECT_EQ(bytes(512, 1, bf16) - bytes(512, 1, int8), config.parameters());
  const int64_t logits = 4 * (config.vocab_size + config.hidden_size);
  EXPECT_EQ(bytes(512, 101, bf16) - bytes(512, 1, bf16), 100 * logits);
  EXPECT_EQ(bytes(512, 0, bf16), bytes(512, 512, bf16)) << "0: every row's";
  EXPECT_GT(bytes(1, 1, bf16) - 2 * config.parameters(), 100 << 20) << "attention's plans";
}

TEST(WeightsMemoryTest, ARowTakesWhatTheStepKeepsOfIt) {
  const ModelConfig c = TinyConfig();
  for (const NumericPath path : {NumericPath::kBf16Amx, NumericPath::kBf16Dot, NumericPath::kF32}) {
    const auto bytes = [&](int rows) {
      return static_cast<int64_t>(TransformerModel::MemoryFor(
          c, {.max_batch_tokens = rows, .max_logit_rows = 1, .path = path}));
    };
    const int64_t heads = c.heads * c.head_dim, kv_heads = c.kv_heads * c.head_dim;
    const int64_t floats = c.hidden_size + heads + 2 * kv_heads + c.head_dim;  // cosines and sines
    const int64_t activations = c.hidden_size + heads + c.intermediate_size;
    EXPECT_EQ(bytes(513) - bytes(512),
              floats * 4 + activations * (path == NumericPath::kF32 ? 4 : 2))
        << NumericPathName(path);
  }
}

}  // namespace
}  // namespace kvcake
