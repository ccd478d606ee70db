#include "model/tokenizer_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "base/source_dir_testing.h"
#include "base/temp_dir_testing.h"
#include "model/tokenizer.h"
#include "model/tokenizer_file.h"

namespace kvcake {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using Ids = std::vector<int32_t>;

const std::string kTokenizersMade = SourceDir() + "/tests/golden/tokenizers/";

json ReadGolden(const std::string& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file) << path;
  return json::parse(file);
}

class TokenizerConfigTest : public testing::Test {
 protected:
  Result<Tokenizer> Load(const json& tokenizer, const json& files) const {
    std::ofstream(temp_.path() + "/tokenizer.json") << tokenizer;
    for (const auto& [name, value] : files.items()) {
      std::ofstream(temp_.path() + "/" + name) << value;
    }
    return Tokenizer::Load(temp_.path());
  }
  void ExpectRefused(const json& files, const std::string& part) const {
    const auto loaded = Load(base_, files);
    ASSERT_FALSE(loaded) << files;
    EXPECT_EQ(loaded.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(loaded.error().message, HasSubstr(temp_.path() + "/" + part));
  }

  const TempDir temp_;
  const json base_ = ReadGolden(kTokenizersMade + "llama2/tokenizer.json");
};

// Left out, they would say that no token has a role.
TEST_F(TokenizerConfigTest, FilesThatCannotBeReadAreNotLeftOut) {
  for (const char* name :
       {"tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"}) {
    ExpectRefused({{name, json::array()}}, name);
    std::ofstream(temp_.path() + "/" + name) << "{";
    ExpectRefused(json::object(), name);
    std::ofstream(temp_.path() + "/" + name) << "{}";
    EXPECT_TRUE(Load(base_, json::object()));
  }
}

// What transformers 4.57 and 5.24 made of them: 4 goes by the class and its flags, 5 does not.
TEST_F(TokenizerConfigTest, FlagsThatTransformers4AloneGoesByAreToldOf) {
  const auto told = [&](const json& tokenizer, const json& config) {
    EXPECT_TRUE(Load(tokenizer, {{"tokenizer_config.json", config}}));
    return ReadTokenizerFile(temp_.path(), {}).value().disagreement;
  };
  json bare = base_;  // base_ adds a BOS token
  bare["post_processor"] = nullptr;
  const json llama = {{"tokenizer_class", "LlamaTokenizerFast"}};
  const auto with = [&](const char* field, const json& value) {
    json config = llama;
    config[field] = value;
    return config;
  };
  EXPECT_EQ(told(base_, llama), "");
  EXPECT_EQ(told(base_, with("add_bos_token", nullptr)), "");
  EXPECT_THAT(told(base_, with("add_bos_token", false)),
              HasSubstr("add_bos_token of tokenizer_config.json is false, and tokenizer.json adds "
                        "one"));
  EXPECT_THAT(told(base_, with("add_eos_token", true)),
              HasSubstr("add_eos_token of tokenizer_config.json is true, and tokenizer.json adds "
                        "none"));
  EXPECT_THAT(told(bare, llama), HasSubstr("add_bos_token"));
  EXPECT_EQ(told(bare, with("add_bos_token", false)), "");
  EXPECT_EQ(told(bare, {{"tokenizer_class", "PreTrainedTokenizerFast"}, {"add_bos_token", true}}),
            "");
  EXPECT_EQ(told(bare, {{"add_bos_token", true}}), "");
}

class NamedTokensTest : public TokenizerConfigTest, public testing::WithParamInterface<json> {};

// What transformers made of texts with them: tools/goldens/named_tokens.py.
TEST_P(NamedTokensTest, AreTokensAsTransformersHasThem) {
  const json& golden = GetParam();
  json file = base_;
  if (!golden["listed"]) file["added_tokens"] = json::array();
  for (json& listed : file["added_tokens"]) {
    const std::string content = listed["content"];
    if (golden["flags"].contains(content)) listed.update(golden["flags"][content]);
  }
  json& vocabulary = file["model"]["vocab"];
  for (const std::string word : golden["words"]) {
    const size_t id = vocabulary.size();
    vocabulary[word] = id;
  }
  const auto tokenizer = Load(file, golden["files"]);
  ASSERT_TRUE(tokenizer) << tokenizer.error().message;
  EXPECT_EQ(tokenizer->eos_token() ? json(*tokenizer->eos_token()) : json(), golden["eos"]);
  EXPECT_EQ(json(TokenizerConfig::Read(temp_.path()).value().names), golden["names"]);
  for (const json& test : golden["texts"]) {
    const Ids ids = test["ids"];
    EXPECT_EQ(*tokenizer->Encode(test["text"].get<std::string>()), ids) << test["text"];
    EXPECT_EQ(json(tokenizer->Decode(ids, /*skip_special=*/false)), test["decoded"])
        << test["text"];
    EXPECT_EQ(json(tokenizer->Decode(ids)), test["decoded_skipping"]) << test["text"];
  }
}

INSTANTIATE_TEST_SUITE_P(All, NamedTokensTest,
                         testing::ValuesIn(ReadGolden(kTokenizersMade + "named_tokens.json")),
                         [](const auto& info) { return "Case" + std::to_string(info.index); });

TEST_F(TokenizerConfigTest, ClassesHaveTheNamesThatFilesDoNotSay) {
  const auto names = [&](json config) {
    std::ofstream(temp_.path() + "/tokenizer_config.json") << config;
    return json(TokenizerConfig::Read(temp_.path()).value().names);
  };
  const json golden = ReadGolden(kTokenizersMade + "class_names.json");
  for (const auto& [tokenizer_class, wanted] : golden.items()) {
    EXPECT_EQ(names({{"tokenizer_class", tokenizer_class}}), wanted) << tokenizer_class;
  }
  EXPECT_EQ(names({{"tokenizer_class", "LlamaTokenizer"}, {"bos_token", nullptr}}),
            json({{"eos_token", "</s>"}, {"unk_token", "<unk>"}}))
      << "which says that there is none";
  EXPECT_EQ(names({{"tokenizer_class", "LlamaTokenizer"}, {"eos_token", "<end>"}})["eos_token"],
            "<end>");
  EXPECT_EQ(names({{"tokenizer_class", 7}}), json::object());
}

TEST_F(TokenizerConfigTest, AClasssTokensAreThoseThatTheVocabularyHas) {
  json bare = base_;
  bare["added_tokens"] = json::array();
  const auto load = [&](const char* tokenizer_class) {
    return Load(bare, {{"tokenizer_config.json", {{"tokenizer_class", tokenizer_class}}}}).value();
  };
  const Tokenizer plain = load("PreTrainedTokenizerFast"), llama = load("LlamaTokenizer");
  EXPECT_FALSE(plain.eos_token());
  EXPECT_EQ(llama.eos_token(), 2);
  EXPECT_GT(plain.Encode("a</s>")->size(), llama.Encode("a</s>")->size());
  EXPECT_EQ(llama.Encode("a</s>")->back(), 2);
  EXPECT_EQ(llama.Decode(Ids{2}), "") << "it is special";
  const Tokenizer gpt2 = load("GPT2Tokenizer");
  EXPECT_FALSE(gpt2.eos_token());
  EXPECT_EQ(*gpt2.Encode("a<|endoftext|>"), *plain.Encode("a<|endoftext|>"));
}

TEST_F(TokenizerConfigTest, TextThatMayBeASpecialTokensOwnIsNotSplit) {
  const auto loaded = Load(base_, {{"tokenizer_config.json", {{"split_special_tokens", true}}}});
  ASSERT_FALSE(loaded);
  EXPECT_EQ(loaded.error().code, ErrorCode::kUnsupported);
  EXPECT_THAT(loaded.error().message,
              HasSubstr("tokenizer_config.json: split_special_tokens true is not supported"));
}

TEST_F(TokenizerConfigTest, AContradictionIsNamed) {
  const auto by_id = [](const char* id, const char* content) {
    return json{{"tokenizer_config.json",
                 {{"added_tokens_decoder", {{id, {{"content", content}, {"special", true}}}}}}}};
  };
  ExpectRefused(by_id("900", "<x>"),
                "tokenizer_config.json: added_tokens_decoder.900: id of <x> "
                "is 900, but Hugging Face, which counts on from the "
                "vocabulary, gives it 863");
  ExpectRefused(by_id("5", "<0x41>"),
                "tokenizer_config.json: added_tokens_decoder.5: id of <0x41> "
                "has id 5, but in model.vocab it has 68");
  ExpectRefused(by_id("99999999", "<x>"),
                "tokenizer_config.json: added_tokens_decoder.99999999: "
                "gives <x> the id 99999999; the limit is 1048575");
  ExpectRefused(by_id("x", "<x>"),
                "tokenizer_config.json: added_tokens_decoder.x is not named by an id");
  EXPECT_TRUE(Load(base_, by_id("7", "</s>")));  // tokenizer.json's counts
}

TEST_F(TokenizerConfigTest, WhatIsNoTokenIsNamed) {
  ExpectRefused({{"tokenizer_config.json", json::array()}}, "tokenizer_config.json");
  ExpectRefused({{"tokenizer_config.json", {{"eos_token", 2}}}},
                "tokenizer_config.json: eos_token is 2; it must be a token");
  ExpectRefused({{"tokenizer_config.json", {{"eos_token", {{"content", 2}}}}}},
                "tokenizer_config.json: eos_token.content is 2; it must be text");
  ExpectRefused({{"tokenizer_config.json", {{"extra_special_tokens", "<x>"}}}},
                "tokenizer_config.json: extra_special_tokens is");
  ExpectRefused({{"tokenizer_config.json", json::object()}, {"added_tokens.json", {{"<x>", "y"}}}},
                "added_tokens.json: <x> is");
}

}  // namespace
}  // namespace kvcake
