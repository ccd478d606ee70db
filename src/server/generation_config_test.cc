#include "server/generation_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "base/temp_dir_testing.h"

namespace kvcake {
namespace {

using testing::HasSubstr;

class GenerationConfigTest : public testing::Test {
 protected:
  Result<RequestDefaults> Load(const std::string& text, bool must_exist = true) const {
    std::ofstream(dir_.path() + "/generation_config.json") << text;
    return LoadRequestDefaults(dir_.path(), must_exist);
  }

  TempDir dir_;
};

TEST_F(GenerationConfigTest, HasWhatVllmTakesFromIt) {
  const auto defaults = Load(R"({"do_sample": true, "temperature": 0.6, "top_k": 20, "top_p": 0.95,
      "min_p": 0.1, "repetition_penalty": 1.05, "max_new_tokens": 2048, "eos_token_id": [1, 2],
      "transformers_version": "4.51.0"})");
  ASSERT_TRUE(defaults) << defaults.error().message;
  EXPECT_EQ(defaults->sampling.temperature, 0.6);
  EXPECT_EQ(defaults->sampling.top_k, 20);
  EXPECT_EQ(defaults->sampling.top_p, 0.95);
  EXPECT_EQ(defaults->sampling.min_p, 0.1);
  EXPECT_EQ(defaults->sampling.repetition_penalty, 1.05);
  EXPECT_EQ(defaults->max_tokens, 2048);
}

TEST_F(GenerationConfigTest, WhatItLeavesOutIsOpenAis) {
  for (const auto& defaults : {Load("{}"), Load(R"({"temperature": null, "top_k": -1})")}) {
    EXPECT_EQ(defaults.value().sampling.temperature, 1);
    EXPECT_EQ(defaults->sampling.top_k, 0);
    EXPECT_EQ(defaults->sampling.top_p, 1);
    EXPECT_FALSE(defaults->max_tokens);
  }
}

TEST_F(GenerationConfigTest, NonsenseIsRefusedByName) {
  for (const auto& [text, name] : {std::pair(R"({"temperature": -1})", "temperature"),
                                   {R"({"top_p": 0})", "top_p"},
                                   {R"({"top_k": 1.5})", "top_k"},
                                   {R"({"repetition_penalty": 0})", "repetition_penalty"},
                                   {R"({"max_new_tokens": 0})", "max_new_tokens"},
                                   {"[]", "generation_config.json"}}) {
    EXPECT_THAT(Load(text, false).error().message, HasSubstr(name)) << text;
  }
}

TEST_F(GenerationConfigTest, ItMayBeMissingUnlessItWasNamed) {
  EXPECT_EQ(LoadRequestDefaults(dir_.path(), false).value().sampling.temperature, 1);
  EXPECT_EQ(LoadRequestDefaults(dir_.path(), true).error().code, ErrorCode::kNotFound);
}

}  // namespace
}  // namespace kvcake
