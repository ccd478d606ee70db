#include "model/family.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "base/temp_dir_testing.h"
#include "model/synth.h"

namespace kvcake {
namespace {

using nlohmann::json;
using testing::HasSubstr;

class FamilyTest : public testing::Test {
 protected:
  Result<ModelConfig> Load(const json& config) const {
    std::ofstream(dir_ + "/config.json") << config;
    return LoadModelConfig(dir_);
  }
  ModelConfig Read(const json& config) const {
    const auto loaded = Load(config);
    EXPECT_TRUE(loaded) << loaded.error().message;
    return loaded.value_or(ModelConfig{});
  }
  void ExpectRefused(const json& config, const std::string& part) const {
    const auto loaded = Load(config);
    ASSERT_FALSE(loaded) << config;
    EXPECT_THAT(loaded.error().message, HasSubstr("config.json"));
    EXPECT_THAT(loaded.error().message, HasSubstr(part));
  }

  const TempDir temp_;
  const std::string dir_ = temp_.path();
};

json With(json config, const json& changes) {
  config.update(changes);
  return config;
}

const json kLlamaLike = {{"hidden_size", 64},       {"intermediate_size", 96},
                         {"num_hidden_layers", 4},  {"num_attention_heads", 32},
                         {"head_dim", 16},          {"vocab_size", 300},
                         {"rms_norm_eps", 1e-5},    {"max_position_embeddings", 4096},
                         {"rope_theta", 1000000.0}, {"hidden_act", "silu"}};

// As published, without what transformers ignores.
const json kFalcon7B = {{"alibi", false},         {"architectures", {"FalconForCausalLM"}},
                        {"bias", false},          {"bos_token_id", 11},
                        {"eos_token_id", 11},     {"hidden_size", 4544},
                        {"model_type", "falcon"}, {"layer_norm_epsilon", 1e-5},
                        {"multi_query", true},    {"new_decoder_architecture", false},
                        {"num_kv_heads", 71},     {"num_attention_heads", 71},
                        {"parallel_attn", true},  {"num_hidden_layers", 32},
                        {"vocab_size", 65024}};

TEST_F(FamilyTest, EveryShapeIsWhatItsOwnFileSays) {
  for (const std::string& name : SynthArchNames()) {
    const ModelConfig config = *SynthArch(name);
    const auto text = ModelConfigJson(config);
    ASSERT_TRUE(text) << name << ": " << text.error().message;
    EXPECT_EQ(Read(json::parse(*text)), config) << name;
  }
}

TEST_F(FamilyTest, EveryRopeIsWhatItsOwnFileSays) {
  using Kind = RopeConfig::Kind;
  for (const RopeConfig& rope :
       std::initializer_list<RopeConfig>{{.kind = Kind::kLinear, .theta = 7, .factor = 2},
                                         {.kind = Kind::kLlama3,
                                         .factor = 2,
                                         .original_max_positions = 999,
                                         .low_freq_factor = 2,
                                         .high_freq_factor = 3},
                                         {.kind = Kind::kYarn,
                                         .factor = 2,
                                         .original_max_positions = 1024,
                                         .beta_fast = 16,
                                         .beta_slow = 2,
                                         .truncate = false,
                                         .attention_factor = 1.5}}) {
    ModelConfig config = *SynthArch("tiny");
    config.rope = rope;
    config.max_positions = 2048;
    const auto text = ModelConfigJson(config);
    ASSERT_TRUE(text) << text.error().message;
    EXPECT_EQ(Read(json::parse(*text)), config) << *text;
  }
}

TEST_F(FamilyTest, LlamaMayHaveBiases) {
  const json llama = With(kLlamaLike, {{"model_type", "llama"}});
  EXPECT_FALSE(Read(llama).qkv_bias || Read(llama).o_bias || Read(llama).mlp_bias);
  const ModelConfig biased = Read(With(llama, {{"attention_bias", true}, {"mlp_bias", true}}));
  EXPECT_TRUE(biased.qkv_bias && biased.o_bias && biased.mlp_bias);
  EXPECT_EQ(biased.kv_heads, 32);
}

TEST_F(FamilyTest, MistralHasAWindowUnlessItSaysNot) {
  const json mistral = With(kLlamaLike, {{"model_type", "mistral"}});
  const ModelConfig config = Read(mistral);  // 4096, no smaller than the context
  EXPECT_EQ(config.kv_heads, 8);
  EXPECT_EQ(config.norm, NormKind::kRms);
  EXPECT_EQ(Read(With(mistral, {{"num_key_value_heads", nullptr}})).kv_heads, 32);
  ExpectRefused(With(mistral, {{"sliding_window", 4095}}), "sliding_window is 4095");
  const json longer = With(mistral, {{"max_position_embeddings", 32768}});
  ExpectRefused(longer, "sliding_window is 4096, smaller than the context of 32768");
  ExpectRefused(longer, "--disable-sliding-window");
  const auto within = LoadModelConfig(dir_, {.within_window = true});
  EXPECT_EQ(within.value(), config) << "but for its positions it is the same";
  EXPECT_EQ(within->max_positions, 4096);
  Read(With(longer, {{"sliding_window", nullptr}}));
  Read(With(longer, {{"sliding_window", 32768}}));
  for (const json& senseless : {json(0), json(-1), json("4096"), json(1.5)}) {
    ExpectRefused(With(longer, {{"sliding_window", senseless}}), "sliding_window");
  }
}

TEST_F(FamilyTest, QwenSlidesOnlyWhereItsWindowIsUsed) {
  for (const char* type : {"qwen2", "qwen3"}) {
    const json qwen = With(kLlamaLike, {{"model_type", type}, {"sliding_window", 1024}});
    const ModelConfig config = Read(qwen);
    EXPECT_EQ(config.kv_heads, 32);
    EXPECT_EQ(config.bos_token, -1);
    EXPECT_TRUE(config.eos_tokens.empty());
    const json used = With(qwen, {{"use_sliding_window", true}});
    EXPECT_EQ(Read(used), config) << "max_window_layers is 28 by default";
    ExpectRefused(With(used, {{"max_window_layers", 3}}), "sliding_window is 1024");
    EXPECT_EQ(Read(With(used, {{"max_window_layers", 4}})), config);
    EXPECT_EQ(Read(With(used, {{"max_window_layers", 0}, {"sliding_window", 4096}})), config);
    EXPECT_EQ(Read(With(used, {{"max_window_layers", 0}, {"sliding_window", nullptr}})), config);
    const json full = json::array({"full_attention", "full_attention"});
    EXPECT_EQ(Read(With(used, {{"max_window_layers", 0}, {"layer_types", full}})), config);
    const json mixed = json::array({"full_attention", "sliding_attention"});
    ExpectRefused(With(used, {{"layer_types", mixed}}), "sliding_window");
    ExpectRefused(With(qwen, {{"layer_types", mixed}}), "layer_types");
    ExpectRefused(With(qwen, {{"layer_types", 3}}), "layer_types");
  }
}

TEST_F(FamilyTest, NoFamilySeesWhatFollowsAToken) {
  for (const char* type : {"llama", "mistral", "qwen2", "qwen3"}) {
    const json config = With(kLlamaLike, {{"model_type", type}, {"sliding_window", nullptr}});
    EXPECT_EQ(Read(With(config, {{"is_causal", true}})), Read(config));
    ExpectRefused(With(config, {{"is_causal", false}}),
                  "is_causal is false; kvcake computes causal attention only");
  }
  ExpectRefused(With(kFalcon7B, {{"is_causal", false}}), "is_causal is false");
  EXPECT_EQ(Read(With(kFalcon7B, {{"is_causal", nullptr}})), Read(kFalcon7B));
}

TEST_F(FamilyTest, QwensDifferInBiasesAndHeadNorms) {
  const ModelConfig qwen2 = Read(With(kLlamaLike, {{"model_type", "qwen2"}}));
  EXPECT_TRUE(qwen2.qkv_bias);
  EXPECT_FALSE(qwen2.o_bias || qwen2.qk_norm);
  json qwen3 = With(kLlamaLike, {{"model_type", "qwen3"}});
  qwen3.erase("head_dim");
  EXPECT_EQ(Read(qwen3).head_dim, 128);
  EXPECT_TRUE(Read(qwen3).qk_norm);
  EXPECT_FALSE(Read(qwen3).qkv_bias);
  EXPECT_TRUE(Read(With(qwen3, {{"attention_bias", true}})).o_bias);
}

TEST_F(FamilyTest, MixturesOfExpertsSayHowManyThereAre) {
  const json qwen = With(kLlamaLike, {{"model_type", "qwen3_moe"}});
  ModelConfig config = Read(qwen);
  EXPECT_EQ(config.experts, (ExpertsConfig{.count = 128, .per_token = 8, .normalized = false}));
  EXPECT_EQ(config.intermediate_size, 768);
  EXPECT_TRUE(config.qk_norm);
  config = Read(With(qwen, {{"num_experts", 16},
                            {"num_experts_per_tok", 3},
                            {"norm_topk_prob", true},
                            {"moe_intermediate_size", 32}}));
  EXPECT_EQ(config.experts, (ExpertsConfig{.count = 16, .per_token = 3, .normalized = true}));
  EXPECT_EQ(config.intermediate_size, 32);
  // As transformers 5 spells it.
  EXPECT_EQ(Read(With(qwen, {{"num_local_experts", 9}})).experts.count, 9);
  ExpectRefused(With(qwen, {{"num_experts", 4}}),
                "num_experts_per_tok is 8, more than the 4 of num_experts");
  ExpectRefused(With(qwen, {{"num_experts", 4}, {"num_experts_per_tok", 5}}),
                "num_experts_per_tok is 5");
  ExpectRefused(With(qwen, {{"num_experts", 0}}), "num_experts is 0");
  ExpectRefused(With(qwen, {{"num_experts", 1 << 16}}),
                "num_hidden_layers (4) x num_experts (65536) exceeds 131072");
  ExpectRefused(With(qwen, {{"decoder_sparse_step", 2}}), "some layers have no experts");
  ExpectRefused(With(qwen, {{"mlp_only_layers", {0}}}), "some layers have no experts");
  Read(With(qwen, {{"mlp_only_layers", json::array()}, {"decoder_sparse_step", 1}}));

  json mixtral = With(kLlamaLike, {{"model_type", "mixtral"}});
  config = Read(mixtral);
  EXPECT_EQ(config.experts, (ExpertsConfig{.count = 8, .per_token = 2, .normalized = true}));
  EXPECT_EQ(config.intermediate_size, 96);
  ExpectRefused(With(mixtral, {{"sliding_window", 1024}}), "sliding_window is 1024");
  mixtral.erase("rope_theta");
  mixtral.erase("rms_norm_eps");
  EXPECT_EQ(Read(mixtral).rope.theta, 1e6);
  EXPECT_EQ(Read(mixtral).norm_eps, 1e-5);
}

// Qwen3-30B-A3B's, as its card says: 30.5B in total and 3.3B activated.
TEST_F(FamilyTest, TokensMeetSomeOfTheExperts) {
  const auto qwen = SynthArch("qwen3-30b-a3b");
  EXPECT_NEAR(static_cast<double>(qwen->active_parameters()), 3.3e9, 0.06e9);
  const auto dense = SynthArch("qwen3-0.6b");
  EXPECT_EQ(dense->active_parameters(), dense->parameters());
}

TEST_F(FamilyTest, EachHasHuggingFacesContextWhereItsFileSaysNone) {
  json silent = kLlamaLike;
  silent.erase("max_position_embeddings");
  for (const auto& [type, context] : std::initializer_list<std::pair<const char*, int>>{
           {"llama", 2048}, {"mistral", 131072}, {"qwen2", 32768}, {"qwen3", 32768}}) {
    const json config = With(silent, {{"model_type", type}, {"sliding_window", nullptr}});
    EXPECT_EQ(Read(config).max_positions, context) << type;
  }
  EXPECT_EQ(Read(kFalcon7B).max_positions, 2048);
}

// Where a file says nothing of it, a window slides, and a text begins and ends, as there.
TEST_F(FamilyTest, WhatAFileDoesNotSayIsHuggingFaces) {
  const json longer = With(kLlamaLike, {{"max_position_embeddings", 32768}});
  ExpectRefused(
      With(longer,
           {{"model_type", "qwen2"}, {"use_sliding_window", true}, {"max_window_layers", 0}}),
      "sliding_window is 4096");
  const auto ends = [&](const json& config) {
    const ModelConfig read = Read(config);
    return std::pair(read.bos_token, read.eos_tokens);
  };
  EXPECT_EQ(ends(With(kLlamaLike, {{"model_type", "mistral"}})),
            std::pair(1, std::vector<int32_t>{2}));
  json falcon = kFalcon7B;
  for (const char* name : {"bos_token_id", "eos_token_id", "layer_norm_epsilon"}) {
    falcon.erase(name);
  }
  EXPECT_EQ(ends(falcon), std::pair(11, std::vector<int32_t>{11}));
  EXPECT_EQ(Read(falcon).norm_eps, 1e-5);
  falcon.update({{"model_type", "RefinedWebModel"}, {"architectures", {"RWForCausalLM"}}});
  EXPECT_EQ(ends(falcon), std::pair(1, std::vector<int32_t>{2}));
}

TEST_F(FamilyTest, Falcon7B) {
  EXPECT_EQ(Read(kFalcon7B), [] {
    ModelConfig config = *SynthArch("falcon-7b");
    config.bos_token = 11;
    config.eos_tokens = {11};
    return config;
  }());
}

TEST_F(FamilyTest, FalconsOfTheOldSpelling) {
  json old = kFalcon7B;
  for (const char* name :
       {"num_kv_heads", "num_attention_heads", "num_hidden_layers", "new_decoder_architecture"}) {
    old.erase(name);
  }
  old.update({{"model_type", "RefinedWebModel"},
              {"architectures", {"RWForCausalLM"}},
              {"n_head", 71},
              {"n_layer", 32}});
  EXPECT_EQ(Read(old), Read(kFalcon7B));
  json plain = old;  // the first Falcons' own defaults
  plain.erase("multi_query");
  plain.erase("parallel_attn");
  plain.update({{"alibi", true}, {"bias", true}});
  const ModelConfig sequential = Read(plain);
  EXPECT_EQ(sequential.block, BlockKind::kSequential);
  EXPECT_EQ(sequential.kv_heads, 71);
  EXPECT_EQ(sequential.position, PositionKind::kAlibi);
  json grouped = old;
  grouped.update({{"model_type", "RefinedWeb"}, {"n_head", 142}, {"n_head_kv", 2}});
  const ModelConfig new_decoder = Read(grouped);
  EXPECT_EQ(new_decoder.block, BlockKind::kParallelTwoNorms);
  EXPECT_EQ(new_decoder.kv_heads, 2);
  EXPECT_EQ(new_decoder.head_dim, 32);
  old.erase("model_type");
  ExpectRefused(old, "model_type is missing");
}

TEST_F(FamilyTest, FalconsHaveNeitherBiasesNorAlibiUnlessTheySay) {
  json silent = kFalcon7B;
  silent.erase("alibi");
  silent.erase("bias");
  EXPECT_EQ(Read(silent), Read(kFalcon7B));
}

TEST_F(FamilyTest, FalconsNewDecoder) {
  const json grouped = With(kFalcon7B, {{"new_decoder_architecture", true}, {"num_kv_heads", 1}});
  EXPECT_EQ(Read(grouped).block, BlockKind::kParallelTwoNorms);
  EXPECT_EQ(Read(grouped).names.mlp_norm, "ln_mlp");
  const ModelConfig one_norm = Read(With(grouped, {{"num_ln_in_parallel_attn", 1}}));
  EXPECT_EQ(one_norm.block, BlockKind::kParallel);
  EXPECT_EQ(one_norm.names.attention_norm, "input_layernorm");
  EXPECT_EQ(Read(With(grouped, {{"parallel_attn", false}})).block, BlockKind::kParallelTwoNorms);
  ExpectRefused(With(grouped, {{"parallel_attn", false}, {"num_ln_in_parallel_attn", 1}}),
                "parallel_attn");
  ExpectRefused(With(kFalcon7B, {{"num_ln_in_parallel_attn", 2}}), "num_ln_in_parallel_attn");
}

TEST_F(FamilyTest, FalconsThatMakeNoSense) {
  ExpectRefused(With(kFalcon7B, {{"activation", "relu"}}), "activation is relu");
  ExpectRefused(With(kFalcon7B, {{"hidden_size", 4545}}), "hidden_size");
  ExpectRefused(With(kFalcon7B, {{"hidden_size", -1}}), "hidden_size");
  ExpectRefused(With(kFalcon7B, {{"ffn_hidden_size", 0}}), "ffn_hidden_size");
  ExpectRefused(With(kFalcon7B, {{"layer_norm_epsilon", -1}}), "layer_norm_epsilon");
  ExpectRefused(With(kFalcon7B, {{"alibi", 1}}), "alibi");
  ExpectRefused(With(kFalcon7B, {{"multi_query", false}, {"num_kv_heads", 1}}), "num_kv_heads");
  ExpectRefused(With(kFalcon7B, {{"new_decoder_architecture", true}, {"num_kv_heads", 2}}),
                "num_kv_heads");
  ExpectRefused(With(kFalcon7B, {{"rope_scaling", {{"type", "dynamic"}, {"factor", 2}}}}),
                "dynamic");
  // transformers does not look at RoPE where there is ALiBi, and takes null for false.
  Read(With(kFalcon7B, {{"alibi", true}, {"rope_scaling", {{"type", "dynamic"}}}}));
  EXPECT_EQ(Read(With(kFalcon7B, {{"parallel_attn", nullptr}})).block, BlockKind::kSequential);
}

}  // namespace
}  // namespace kvcake
