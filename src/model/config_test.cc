#include "model/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "base/temp_dir_testing.h"

namespace kvcake {
namespace {

using nlohmann::json;
using testing::HasSubstr;

class ConfigTest : public testing::Test {
 protected:
  static json Good() {
    return {{"architectures", {"LlamaForCausalLM"}},
            {"model_type", "llama"},
            {"hidden_size", 576},
            {"intermediate_size", 1536},
            {"num_hidden_layers", 30},
            {"num_attention_heads", 9},
            {"num_key_value_heads", 3},
            {"vocab_size", 49152},
            {"max_position_embeddings", 8192},
            {"rms_norm_eps", 1e-5},
            {"rope_theta", 100000.0},
            {"rope_scaling", nullptr},
            {"tie_word_embeddings", true},
            {"hidden_act", "silu"},
            {"bos_token_id", 1},
            {"eos_token_id", 2}};
  }
  void Write(const std::string& name, const std::string& text) const {
    std::ofstream(dir_ + "/" + name, std::ios::binary) << text;
  }
  Result<ModelConfig> Load(const json& config) const {
    Write("config.json", config.dump());
    return LoadModelConfig(dir_);
  }
  void ExpectRefused(const char* field, const json& value, ErrorCode code,
                     const std::string& part) const {
    json config = Good();
    config[field] = value;
    const auto loaded = Load(config);
    ASSERT_FALSE(loaded) << field << " = " << value;
    EXPECT_EQ(loaded.error().code, code) << loaded.error().message;
    EXPECT_THAT(loaded.error().message, HasSubstr("config.json"));
    EXPECT_THAT(loaded.error().message, HasSubstr(part));
  }

  const TempDir temp_;
  const std::string dir_ = temp_.path();
};

TEST_F(ConfigTest, ReadsSmolLm2) {
  const auto config = Load(Good());
  ASSERT_TRUE(config) << config.error().message;
  EXPECT_EQ(config->layers, 30);
  EXPECT_EQ(config->head_dim, 64);
  EXPECT_EQ(config->kv_heads, 3);
  EXPECT_EQ(config->rope.kind, RopeConfig::Kind::kPlain);
  EXPECT_EQ(config->rope.theta, 100000.0);
  EXPECT_EQ(config->bos_token, 1);
  EXPECT_EQ(config->eos_tokens, std::vector<int32_t>{2});
  EXPECT_EQ(config->parameters(), 134515008);  // as published
}

TEST_F(ConfigTest, ReadsOtherSpellings) {
  for (const auto& [field, value] :
       std::initializer_list<std::pair<const char*, json>>{{"architectures", json::array()},
                                                           {"architectures", {"LLaMAForCausalLM"}},
                                                           {"hidden_act", "swish"}}) {
    json config = Good();
    config[field] = value;
    const auto loaded = Load(config);
    ASSERT_TRUE(loaded) << loaded.error().message;
    EXPECT_EQ(*loaded, Load(Good()).value()) << field;
  }
}

TEST_F(ConfigTest, WhatIsQuotedIsShort) {
  for (const char* field : {"model_type", "hidden_act"}) {
    json config = Good();
    config[field] = std::string(1 << 20, 'x');
    const auto loaded = Load(config);
    ASSERT_FALSE(loaded);
    EXPECT_THAT(loaded.error().message, HasSubstr(field));
    EXPECT_LT(loaded.error().message.size(), 1000u);
  }
}

TEST_F(ConfigTest, FillsInWhatHuggingFaceDoes) {
  json config = Good();
  for (const char* name :
       {"num_key_value_heads", "rope_theta", "rms_norm_eps", "rope_scaling", "tie_word_embeddings",
        "hidden_act", "bos_token_id", "eos_token_id", "max_position_embeddings"}) {
    config.erase(name);
  }
  auto loaded = Load(config);
  ASSERT_TRUE(loaded) << loaded.error().message;
  EXPECT_EQ(loaded->kv_heads, 9);
  EXPECT_EQ(loaded->rope.theta, 10000.0);
  EXPECT_EQ(loaded->norm_eps, 1e-6);
  EXPECT_FALSE(loaded->tie_embeddings);
  EXPECT_EQ(loaded->max_positions, 2048);
  EXPECT_EQ(loaded->bos_token, 1);
  EXPECT_EQ(loaded->eos_tokens, std::vector<int32_t>{2});
  config["bos_token_id"] = nullptr;
  config["eos_token_id"] = nullptr;
  loaded = Load(config);
  ASSERT_TRUE(loaded);
  EXPECT_EQ(loaded->bos_token, -1);
  EXPECT_TRUE(loaded->eos_tokens.empty());
}

TEST_F(ConfigTest, ReadsBothSpellingsOfRope) {
  const json llama3 = {{"factor", 32.0},
                       {"low_freq_factor", 1.0},
                       {"high_freq_factor", 4.0},
                       {"original_max_position_embeddings", 8192}};
  json old_spelling = Good(), middle = Good(), newest = Good();
  old_spelling["rope_scaling"] = llama3;
  old_spelling["rope_scaling"]["type"] = "llama3";
  middle["rope_scaling"] = llama3;
  middle["rope_scaling"]["rope_type"] = "llama3";
  newest.erase("rope_scaling");
  newest.erase("rope_theta");
  newest["rope_parameters"] = llama3;
  newest["rope_parameters"]["rope_type"] = "llama3";
  newest["rope_parameters"]["rope_theta"] = 100000.0;
  for (const json& config : {old_spelling, middle, newest}) {
    const auto loaded = Load(config);
    ASSERT_TRUE(loaded) << loaded.error().message;
    EXPECT_EQ(loaded->rope.kind, RopeConfig::Kind::kLlama3);
    EXPECT_EQ(loaded->rope.theta, 100000.0);
    EXPECT_EQ(loaded->rope.factor, 32.0);
    EXPECT_EQ(loaded->rope.low_freq_factor, 1.0);
    EXPECT_EQ(loaded->rope.high_freq_factor, 4.0);
    EXPECT_EQ(loaded->rope.original_max_positions, 8192);
  }
  json linear = Good();
  linear["rope_scaling"] = {{"type", "linear"}, {"factor", 4.0}};
  const auto loaded = Load(linear);
  ASSERT_TRUE(loaded);
  EXPECT_EQ(loaded->rope.kind, RopeConfig::Kind::kLinear);
  EXPECT_EQ(loaded->rope.factor, 4.0);
  for (const json& parameters :
       {json{{"rope_type", "default"}, {"rope_theta", 5000.0}}, json{{"rope_theta", 5000.0}}}) {
    newest["rope_parameters"] = parameters;
    const auto plain = Load(newest);
    ASSERT_TRUE(plain) << plain.error().message;
    EXPECT_EQ(plain->rope.kind, RopeConfig::Kind::kPlain);
    EXPECT_EQ(plain->rope.theta, 5000.0);
  }
}

// What transformers 5 does with fields that are in two places, or in neither.
TEST_F(ConfigTest, RopeFieldsGoBeforeEachOtherAsInTransformers) {
  json config = Good();
  config["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 4.0}};
  config["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 7.0}};
  auto loaded = Load(config);
  ASSERT_TRUE(loaded);
  EXPECT_EQ(loaded->rope.kind, RopeConfig::Kind::kLinear);
  EXPECT_EQ(loaded->rope.theta, 100000.0);
  EXPECT_EQ(loaded->max_positions, 4 * 8192) << "linear scaling stretches the context";
  config["rope_scaling"]["factor"] = 1e6;
  loaded = Load(config);
  ASSERT_TRUE(loaded);
  EXPECT_EQ(loaded->max_positions, 1 << 30) << "no longer than any prompt";
  config["rope_scaling"] = json::object();
  loaded = Load(config);
  ASSERT_TRUE(loaded);
  EXPECT_EQ(loaded->rope.theta, 7.0);
  EXPECT_EQ(loaded->max_positions, 8192);
  config["rope_scaling"] = {
      {"rope_type", "llama3"}, {"factor", 8}, {"low_freq_factor", 1}, {"high_freq_factor", 4}};
  config["max_position_embeddings"] = 4096;
  loaded = Load(config);
  ASSERT_TRUE(loaded);
  EXPECT_EQ(loaded->rope.original_max_positions, 4096) << "as max_position_embeddings";
  config["rope_scaling"]["original_max_position_embeddings"] = 512;
  config["original_max_position_embeddings"] = 1024;
  loaded = Load(config);
  ASSERT_TRUE(loaded);
  EXPECT_EQ(loaded->rope.original_max_positions, 1024);
}

// Qwen3's, as its model card says it.
TEST_F(ConfigTest, YarnsContextIsItsFactorTimesTheOriginalOne) {
  json config = Good();
  config["max_position_embeddings"] = 40960;
  config["rope_scaling"] = {
      {"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 32768}};
  auto loaded = Load(config);
  ASSERT_TRUE(loaded) << loaded.error().message;
  RopeConfig want = {.kind = RopeConfig::Kind::kYarn,
                     .theta = 100000,
                     .factor = 4,
                     .original_max_positions = 32768,
                     .attention_factor = 0.1 * std::log(4.0) + 1};
  EXPECT_EQ(loaded->rope, want);
  EXPECT_EQ(loaded->max_positions, 131072);
  json& yarn = config["rope_scaling"];
  yarn.update({{"beta_fast", 16}, {"beta_slow", 2}, {"truncate", false}, {"mscale", 0.7}});
  want.beta_fast = 16;
  want.beta_slow = 2;
  want.truncate = false;
  EXPECT_EQ(Load(config)->rope, want) << "mscale alone does nothing";
  yarn["mscale_all_dim"] = 0.5;
  want.attention_factor = (0.07 * std::log(4.0) + 1) / (0.05 * std::log(4.0) + 1);
  EXPECT_DOUBLE_EQ(Load(config)->rope.attention_factor, want.attention_factor);
  yarn["attention_factor"] = 1.5;
  EXPECT_EQ(Load(config)->rope.attention_factor, 1.5);
  yarn["beta_fast"] = 0;  // as if it were absent
  yarn["beta_slow"] = 1e-320;
  loaded = Load(config);
  EXPECT_EQ(loaded->rope.beta_fast, 32);
  EXPECT_EQ(loaded->rope.beta_slow, 1);
}

TEST_F(ConfigTest, RefusesYarnThatMakesNoSense) {
  constexpr auto kCode = ErrorCode::kInvalidArgument;
  const json yarn = {{"rope_type", "yarn"}, {"factor", 4.0}};
  const auto with = [&](const char* name, const json& value) {
    json changed = yarn;
    changed[name] = value;
    return changed;
  };
  ExpectRefused("rope_scaling", with("factor", nullptr), kCode, "rope_scaling: factor");
  ExpectRefused("rope_scaling", with("factor", 0.5), kCode, "factor is 0.5");
  ExpectRefused("rope_scaling", with("beta_fast", 0.5), kCode,
                "beta_fast is 0.5; it must be at least beta_slow (1)");
  ExpectRefused("rope_scaling", with("attention_factor", 0), kCode, "attention_factor is 0");
  ExpectRefused("rope_scaling", with("truncate", "no"), kCode, "truncate");
  ExpectRefused("rope_scaling", with("original_max_position_embeddings", 0), kCode,
                "original_max_position_embeddings is 0");
  ExpectRefused("rope_scaling", with("rope_theta", 1), kCode, "cannot be yarn");
}

TEST_F(ConfigTest, RefusesByNameWhatItCannotRun) {
  constexpr auto kCode = ErrorCode::kUnsupported;
  ExpectRefused("architectures", {"MistralForCausalLM"}, kCode, "MistralForCausalLM");
  ExpectRefused("architectures", {"LlamaForCausalLM", "X"}, kCode, "architectures");
  ExpectRefused("architectures", json::object(), kCode, "architectures");
  ExpectRefused("model_type", "gemma", kCode, "model_type is gemma; kvcake runs llama, mistral");
  ExpectRefused("hidden_act", "gelu", kCode, "hidden_act is gelu");
  ExpectRefused("sliding_window", 4096, kCode, "lower max_position_embeddings to 4096");
  ExpectRefused("layer_types", {"sliding_attention"}, kCode, "layer_types");
  ExpectRefused("layer_types", {"linear_attention"}, kCode, "linear_attention");
  ExpectRefused("partial_rotary_factor", 0.5, kCode, "partial_rotary_factor");
  ExpectRefused("rope_parameters", {{"partial_rotary_factor", 0.5}}, kCode,
                "partial_rotary_factor");
  ExpectRefused("rope_parameters", {{"full_attention", json::object()}}, kCode, "full_attention");
  for (const char* type : {"dynamic", "longrope", "proportional"}) {
    const json scaling = {{"rope_type", type}, {"factor", 2.0}};
    ExpectRefused("rope_scaling", scaling, kCode,
                  std::string("rope_scaling: RoPE scaling ") + type);
    ExpectRefused("rope_parameters", scaling, kCode, type);
  }
  ExpectRefused("rope_scaling", {{"type", "dynamic"}, {"factor", 2.0}}, kCode, "lengths");
  ExpectRefused("rope_scaling", {{"type", "longrope"}}, kCode, "lengths");
  ExpectRefused("rope_scaling", {{"type", "su"}}, kCode, "lengths");
}

TEST_F(ConfigTest, RefusesWhatTheKernelsCannotRun) {
  constexpr auto kCode = ErrorCode::kUnsupported;
  ExpectRefused("hidden_size", 594, kCode, "hidden_size is 594, but kvcake's kernels need");
  ExpectRefused("intermediate_size", 100, kCode, "intermediate_size is 100");
  ExpectRefused("head_dim", 24, kCode, "head_dim is 24");
  ExpectRefused("head_dim", 272, kCode, "up to 256");
  json config = Good();
  config["head_dim"] = 64;
  config["num_attention_heads"] = 291;
  const auto crowd = Load(config);
  ASSERT_FALSE(crowd);
  EXPECT_THAT(crowd.error().message, HasSubstr("for each of the 3 key-value heads"));
}

TEST_F(ConfigTest, RefusesQuantisedWeightsByName) {
  constexpr auto kCode = ErrorCode::kUnsupported;
  for (const char* method : {"gptq", "awq", "fp8", "bitsandbytes", "compressed-tensors"}) {
    const json config = {{"quant_method", method}, {"bits", 4}};
    ExpectRefused(
        "quantization_config", config, kCode,
        std::string("quantization_config says that the weights are quantised (") + method);
    ExpectRefused("quantization_config", config, kCode, "unquantised files");
  }
  ExpectRefused("compression_config", {{"quant_method", "compressed-tensors"}}, kCode,
                "compression_config says that the weights are quantised (compressed-tensors)");
  ExpectRefused("quantization_config", {{"bits", 4}}, kCode, "{\"bits\":4}");
  ExpectRefused("quantization_config", 4, kCode, "(4)");
  ExpectRefused("quantization_config", {{"quant_method", 4}}, ErrorCode::kInvalidArgument,
                "quant_method");
  Write("model-q4.gguf", "GGUF");
  const auto gguf = Load(Good());
  ASSERT_FALSE(gguf);
  EXPECT_EQ(gguf.error().code, kCode);
  EXPECT_THAT(gguf.error().message, HasSubstr("model-q4.gguf"));
}

TEST_F(ConfigTest, RefusesSenselessFields) {
  constexpr auto kCode = ErrorCode::kInvalidArgument;
  for (const char* name : {"hidden_size", "intermediate_size", "num_hidden_layers",
                           "num_attention_heads", "vocab_size"}) {
    json config = Good();
    config.erase(name);
    const auto loaded = Load(config);
    ASSERT_FALSE(loaded) << name;
    EXPECT_THAT(loaded.error().message, HasSubstr(std::string(name) + " is missing"));
    for (const json& value : {json(0), json(-1), json(1.5), json("8"), json(INT64_MAX),
                              json(UINT64_MAX), json(true), json::array(), json(1e300)}) {
      ExpectRefused(name, value, kCode, name);
    }
  }
  ExpectRefused("num_key_value_heads", 2, kCode, "num_key_value_heads");
  ExpectRefused("num_key_value_heads", 0, kCode, "num_key_value_heads");
  json vast = Good();
  vast.update({{"num_attention_heads", 24576}, {"head_dim", 64}});
  EXPECT_THAT(Load(vast).error().message,
              HasSubstr("num_attention_heads (24576) x head_dim (64) exceeds 1048576"));
  json nameless = Good();
  nameless.erase("architectures");
  nameless.erase("model_type");
  EXPECT_THAT(Load(nameless).error().message,
              HasSubstr("neither architectures nor model_type is there"));
  ExpectRefused("hidden_size", 577, kCode, "head_dim");
  ExpectRefused("head_dim", 63, kCode, "head_dim");
  for (const double eps : {-1.0, 1.5}) ExpectRefused("rms_norm_eps", eps, kCode, "rms_norm_eps");
  for (const double theta : {0.0, 0.5, 1e16}) {
    ExpectRefused("rope_theta", theta, kCode, "rope_theta");
    ExpectRefused("rope_parameters", {{"rope_theta", theta}}, kCode, "rope_theta");
  }
  ExpectRefused("eos_token_id", "2", kCode, "eos_token_id");
  ExpectRefused("tie_word_embeddings", 1, kCode, "tie_word_embeddings");
  for (const char* type : {"linear", "llama3"}) {
    for (const json& factor : {json(), json(0), json(0.5), json(1e7)}) {
      ExpectRefused("rope_scaling", {{"type", type}, {"factor", factor}}, kCode, "factor");
    }
  }
  ExpectRefused("rope_scaling", 3, kCode, "rope_scaling");
  json llama3 = {{"rope_type", "llama3"},
                 {"factor", 8},
                 {"low_freq_factor", 4},
                 {"high_freq_factor", 4},
                 {"original_max_position_embeddings", 8192}};
  ExpectRefused("rope_scaling", llama3, kCode, "high_freq_factor");
  llama3["high_freq_factor"] = 1e7;
  ExpectRefused("rope_scaling", llama3, kCode, "high_freq_factor");
  llama3["high_freq_factor"] = 8;
  for (const int low : {0, -1}) {
    llama3["low_freq_factor"] = low;
    ExpectRefused("rope_scaling", llama3, kCode, "low_freq_factor");
  }
  llama3["low_freq_factor"] = 4;
  llama3["original_max_position_embeddings"] = -1;
  ExpectRefused("rope_scaling", llama3, kCode, "original_max_position_embeddings");
}

TEST_F(ConfigTest, RefusesWhatIsNotJson) {
  for (const char* text : {"", "{", "[]", "{\"hidden_size\": NaN}", "{\"a\": 1e999}", "\xff\xfe",
                           "{\"a\": \"\xc3\"}", "null"}) {
    Write("config.json", text);
    const auto loaded = LoadModelConfig(dir_);
    ASSERT_FALSE(loaded) << text;
    EXPECT_EQ(loaded.error().code, ErrorCode::kInvalidArgument);
  }
  for (const char* value : {"NaN", "Infinity", "-Infinity", "1e999", "nan"}) {
    std::string text = Good().dump();
    const std::string field = "\"rms_norm_eps\":1e-05";
    ASSERT_NE(text.find(field), std::string::npos);
    text.replace(text.find(field), field.size(), std::string("\"rms_norm_eps\": ") + value);
    Write("config.json", text);
    const auto loaded = LoadModelConfig(dir_);
    ASSERT_FALSE(loaded) << value;
    EXPECT_EQ(loaded.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(loaded.error().message, HasSubstr("config.json"));
    EXPECT_THAT(loaded.error().message, HasSubstr("at the field \"rms_norm_eps\""));
  }
  Write("config.json", std::string(1 << 20, '['));
  EXPECT_FALSE(LoadModelConfig(dir_));
  Write("config.json", std::string(17 << 20, ' '));
  EXPECT_EQ(LoadModelConfig(dir_).error().code, ErrorCode::kResourceExhausted);
  std::filesystem::remove(dir_ + "/config.json");
  EXPECT_EQ(LoadModelConfig(dir_).error().code, ErrorCode::kNotFound);
}

TEST_F(ConfigTest, GenerationConfigOverridesEos) {
  Write("generation_config.json", R"({"eos_token_id": [7, 9], "temperature": 0.6})");
  auto config = Load(Good());
  ASSERT_TRUE(config);
  EXPECT_EQ(config->eos_tokens, (std::vector<int32_t>{7, 9}));
  for (const char* silent : {R"({"temperature": 0.6})", R"({"eos_token_id": null})"}) {
    Write("generation_config.json", silent);
    config = Load(Good());
    ASSERT_TRUE(config);
    EXPECT_EQ(config->eos_tokens, std::vector<int32_t>{2}) << silent;
  }
  Write("generation_config.json", "nonsense");
  EXPECT_THAT(Load(Good()).error().message, HasSubstr("generation_config.json"));
}

TEST_F(ConfigTest, OverridesStandForMembersOfTheFile) {
  const json yarn = {{"type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 8192}};
  json config = Good();
  config["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 2.0}};
  Write("generation_config.json", R"({"eos_token_id": 9})");
  ASSERT_TRUE(Load(config));
  const auto with = [&](const json& overrides) {
    return LoadModelConfig(dir_, {.overrides = overrides.dump()});
  };
  auto loaded = with({{"rope_scaling", yarn}, {"eos_token_id", 7}, {"hidden_act", "silu"}});
  ASSERT_TRUE(loaded) << loaded.error().message;
  json written = config;
  written["rope_scaling"] = yarn;
  ModelConfig want = *Load(written);
  want.eos_tokens = {7};
  EXPECT_EQ(*loaded, want) << "as if the file said so, and nothing of the old object is left";
  Load(config);
  EXPECT_EQ(with({{"rope_scaling", nullptr}, {"sliding_window", nullptr}})->rope.kind,
            RopeConfig::Kind::kPlain);

  const auto refusal = [&](const std::string& overrides) {
    return LoadModelConfig(dir_, {.overrides = overrides}).error();
  };
  for (const char* nonsense : {"{", "[]", "3", "{\"a\": 1} 2"}) {
    EXPECT_EQ(refusal(nonsense).code, ErrorCode::kInvalidArgument) << nonsense;
    EXPECT_THAT(refusal(nonsense).message, HasSubstr("--hf-overrides: ")) << nonsense;
  }
  EXPECT_THAT(refusal(R"({"hidden_size": 0})").message,
              HasSubstr("config.json with --hf-overrides: hidden_size"));
  EXPECT_THAT(refusal(R"({"rope_theta": 5000, "rope_scalling": {}})").message,
              HasSubstr("rope_scalling is not in config.json, and changes nothing"));
}

TEST_F(ConfigTest, TokensThatTheVocabularyLacksAreNone) {
  json config = Good();
  config["bos_token_id"] = 49151;
  config["eos_token_id"] = {49151, 49152, -1, 7};
  auto loaded = Load(config);
  ASSERT_TRUE(loaded) << loaded.error().message;
  EXPECT_EQ(loaded->bos_token, 49151);
  EXPECT_EQ(loaded->eos_tokens, (std::vector<int32_t>{49151, 7}));
  config["bos_token_id"] = 49152;
  loaded = Load(config);
  ASSERT_TRUE(loaded) << loaded.error().message;
  EXPECT_EQ(loaded->bos_token, -1);
  config.erase("bos_token_id");
  config.erase("eos_token_id");
  config["vocab_size"] = 2;
  loaded = Load(config);
  ASSERT_TRUE(loaded) << loaded.error().message;
  EXPECT_EQ(loaded->bos_token, 1) << "what Hugging Face has by default";
  EXPECT_EQ(loaded->eos_tokens, std::vector<int32_t>()) << "the default, 2, is none of the two";
}

TEST_F(ConfigTest, SurvivesRandomDamage) {
  std::mt19937 random(7);
  const std::string good = Good().dump();
  int loaded = 0;
  for (int i = 0; i < 400; ++i) {
    std::string text = good;
    const int edits = 1 + static_cast<int>(random() % 4);
    for (int e = 0; e < edits; ++e) text[random() % text.size()] = static_cast<char>(random());
    Write("config.json", text);
    const auto config = LoadModelConfig(dir_);
    if (config) {
      ++loaded;
      EXPECT_GT(config->hidden_size, 0);
      EXPECT_EQ(config->heads % config->kv_heads, 0);
    }
  }
  EXPECT_LT(loaded, 400);
}

}  // namespace
}  // namespace kvcake
