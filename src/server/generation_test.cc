#include "server/generation.h"

#include <gtest/gtest.h>

#include "base/source_dir_testing.h"
#include "model/tokenizer.h"
#include "server/server_metrics.h"

namespace kvcake {
namespace {

class GenerationTest : public testing::Test {
 protected:
  Generation& Generate(Generation::Options options = {}) {
    generation_.emplace(Detokenizer(tokenizer_, /*skip_special=*/true, {}), std::move(options),
                        metrics_, [this](bool done) { told_.push_back(done); });
    return *generation_;
  }
  // The one token whose bytes these are.
  int32_t Token(std::string_view bytes) const {
    int32_t token = 0;
    while (tokenizer_.Bytes(token) != bytes) ++token;
    return token;
  }
  // Whether the answer goes on.
  bool Say(std::string_view bytes) { return generation_->OnToken({.token = Token(bytes)}); }

  const Tokenizer tokenizer_ = Tokenizer::Load(SourceDir() + "/models/demo").value();
  ServerMetrics metrics_{"ram", {}};
  std::vector<bool> told_;  // whether it was the end
  std::optional<Generation> generation_;
};

TEST_F(GenerationTest, TokensAreCountedFromTheBeginning) {
  Generation& generation = Generate();
  generation.OnAccepted();
  EXPECT_EQ(generation.Take().generated, 0);
  for (int i = 0; i < 2; ++i) generation.OnToken({.token = 70});
  EXPECT_EQ(generation.Take().generated, 2);
  generation.OnToken({.token = 71});
  EXPECT_EQ(generation.Take().generated, 3);
  generation.OnDone(Completion{.tokens = {70, 70, 71}});
  EXPECT_EQ(generation.Take().generated, 3) << "none is new";
}

// Who is told and has not looked yet hears of the end alone: it is sent before all else.
TEST_F(GenerationTest, ItsReaderIsToldOnceForEachLookAndOfTheEnd) {
  Generation& generation = Generate();
  generation.OnAccepted();
  Say("a");
  EXPECT_EQ(told_, (std::vector<bool>{false}));
  generation.Take();
  Say("a");
  Say("a");
  EXPECT_EQ(told_, (std::vector<bool>{false, false}));
  generation.OnDone(Completion{});
  EXPECT_EQ(told_, (std::vector<bool>{false, false, true}));
  EXPECT_EQ(generation.Take().text, "aa");
}

// A client that wants the prompt's scores alone is not charged for the token that they came with.
TEST_F(GenerationTest, OfAPromptAloneNothingIsGenerated) {
  Generation& generation = Generate({.prompt_only = true});
  Say("a");
  generation.OnDone(Completion{.tokens = {Token("a")}, .finish_reason = FinishReason::kLength});
  const Generation::Delta delta = generation.Take();
  EXPECT_EQ(delta.generated, 0);
  EXPECT_EQ(delta.text, "");
  EXPECT_TRUE(delta.completion->value().tokens.empty());
  EXPECT_EQ(metrics_.generation_tokens.value(), 0u);
}

TEST_F(GenerationTest, AStopThatIsWholeWithinTheFewestTokensIsNone) {
  Generate({.stops = {"b"}, .min_tokens = 2});
  EXPECT_TRUE(Say("a"));
  EXPECT_TRUE(Say("b"));
  EXPECT_TRUE(Say("a"));
  EXPECT_FALSE(Say("b"));
  generation_->OnDone(Completion{.tokens = {1, 2, 3, 4}, .finish_reason = FinishReason::kStop});
  const Generation::Delta delta = generation_->Take();
  EXPECT_EQ(delta.text, "aba");
  EXPECT_EQ(std::get<std::string>(delta.stop_reason), "b");
}

TEST_F(GenerationTest, WhatOnlyBeginsLikeAStopIsTextAtTheEnd) {
  Generate({.stops = {"bc"}});
  EXPECT_TRUE(Say("a"));
  EXPECT_TRUE(Say("b"));
  EXPECT_EQ(generation_->Take().text, "a");
  generation_->OnDone(Completion{.tokens = {1, 2}, .finish_reason = FinishReason::kLength});
  const Generation::Delta delta = generation_->Take();
  EXPECT_EQ(delta.text, "b");
  EXPECT_EQ(delta.completion->value().finish_reason, FinishReason::kLength);
}

// A part of a character is known to be none when nothing follows it.
TEST_F(GenerationTest, AStopMayBeWholeOnlyAtTheEnd) {
  Generate({.stops = {"\xef\xbf\xbd"}});
  EXPECT_TRUE(Say("a"));
  EXPECT_TRUE(Say("\xe2"));
  generation_->OnDone(Completion{.tokens = {1, 2}, .finish_reason = FinishReason::kLength});
  const Generation::Delta delta = generation_->Take();
  EXPECT_EQ(delta.text, "a");
  EXPECT_EQ(delta.completion->value().finish_reason, FinishReason::kStop);
  EXPECT_EQ(std::get<std::string>(delta.stop_reason), "\xef\xbf\xbd");
}

}  // namespace
}  // namespace kvcake
