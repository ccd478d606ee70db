// What a tokenizer says of a text's tokens before it encodes it, how far texts may grow, and what
// its user is told.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "base/log_testing.h"
#include "base/source_dir_testing.h"
#include "base/temp_dir_testing.h"
#include "model/tokenizer.h"

namespace kvcake {
namespace {

using nlohmann::json;
using testing::HasSubstr;

class TokenizerLimitsTest : public testing::Test {
 protected:
  TokenizerLimitsTest() {
    std::ifstream(SourceDir() + "/tests/golden/tokenizers/llama2/tokenizer.json") >> file_;
  }
  Result<Tokenizer> Load(const TokenizerOptions& options = {}) const {
    std::ofstream(temp_.path() + "/tokenizer.json") << file_;
    return Tokenizer::Load(temp_.path(), options);
  }
  void AddSpecial(const std::string& content) {
    const size_t id = file_["model"]["vocab"].size();
    file_["added_tokens"].push_back({{"id", id}, {"content", content}, {"special", true}});
  }

  const TempDir temp_;
  json file_;
};

// A prompt of such tokens alone would be refused as too long otherwise.
TEST_F(TokenizerLimitsTest, AnAddedTokenMayBeLongerThanAllOthers) {
  EXPECT_EQ(Load()->TokensAtLeast(9600), 200u) << "48 bytes";
  AddSpecial(std::string(96, 'x'));
  const auto tokenizer = Load();
  ASSERT_TRUE(tokenizer) << tokenizer.error().message;
  EXPECT_EQ(tokenizer->TokensAtLeast(9600), 100u);
  std::string text;
  for (int i = 0; i < 100; ++i) text.append(96, 'x');
  EXPECT_EQ(tokenizer->Encode(text, /*add_special=*/false)->size(), 100u);
}

TEST_F(TokenizerLimitsTest, ATokenThatTakesSpacesAlongMayStandForAnyNumberOfBytes) {
  AddSpecial("<x>");
  EXPECT_EQ(Load()->TokensAtLeast(9600), 200u);
  for (const char* side : {"lstrip", "rstrip"}) {
    file_["added_tokens"].back()["lstrip"] = file_["added_tokens"].back()["rstrip"] = false;
    file_["added_tokens"].back()[side] = true;
    EXPECT_EQ(Load()->TokensAtLeast(9600), 0u) << side;
  }
}

TEST_F(TokenizerLimitsTest, WhatIsPutBeforeATextMayBeSeveralTokens) {
  file_["post_processor"]["special_tokens"]["<s>"]["ids"] = {1, 2, 1};
  const auto tokenizer = Load();
  ASSERT_TRUE(tokenizer) << tokenizer.error().message;
  EXPECT_EQ(*tokenizer->Encode(""), (std::vector<int32_t>{1, 2, 1}));
}

// Each space becomes three bytes.
TEST_F(TokenizerLimitsTest, ALongTextMayGrowAsItIsNormalised) {
  const auto tokenizer = Load();
  ASSERT_TRUE(tokenizer) << tokenizer.error().message;
  const auto ids = tokenizer->Encode(std::string(100'000, ' '));
  ASSERT_TRUE(ids) << ids.error().message;
  EXPECT_EQ(tokenizer->Decode(*ids), std::string(100'000, ' '));
}

TEST_F(TokenizerLimitsTest, WhatAllTokensDecodeToIsBounded) {
  const TokenizerOptions options{.max_file_bytes = 200'000};
  ASSERT_TRUE(Load(options));
  // Each of 256 tokens becomes a thousand bytes or more.
  file_["decoder"]["decoders"][0] = {
      {"type", "Replace"}, {"pattern", {{"String", "0"}}}, {"content", std::string(1000, 'y')}};
  const auto loaded = Load(options);
  ASSERT_FALSE(loaded);
  EXPECT_THAT(loaded.error().message, HasSubstr("decodes to too long texts"));
}

TEST_F(TokenizerLimitsTest, WhoLoadsItIsToldOfFlagsThatAreNotGoneBy) {
  const testing_util::CapturedLog log;
  std::ofstream(temp_.path() + "/tokenizer_config.json")
      << R"({"tokenizer_class": "LlamaTokenizer", "add_bos_token": false})";
  EXPECT_TRUE(Load());
  EXPECT_THAT(log.str(), HasSubstr(temp_.path() + ": add_bos_token"));
}

}  // namespace
}  // namespace kvcake
