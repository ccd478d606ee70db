#include "model/pre_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace kvcake {
namespace {

using nlohmann::json;
using testing::ElementsAre;

std::vector<std::string> Words(const json& rules, std::string_view text) {
  const auto pre = PreTokenizer::Read(JsonField(rules, "tokenizer.json"));
  EXPECT_TRUE(pre) << pre.error().message;
  const auto words = pre->Split(text, /*first=*/true);
  EXPECT_TRUE(words) << words.error().message;
  std::vector<std::string> split;
  for (const PreTokenizer::Word& word : words->words) split.emplace_back(word.text);
  return split;
}

TEST(PreTokenizerTest, DigitsAreAWordTogetherOrEachItsOwn) {
  json digits = {{"type", "Digits"}};
  EXPECT_THAT(Words(digits, "a123 4b"), ElementsAre("a", "123", " ", "4", "b"));
  digits["individual_digits"] = true;
  EXPECT_THAT(Words(digits, "a123 4b"), ElementsAre("a", "1", "2", "3", " ", "4", "b"));
}

TEST(PreTokenizerTest, PunctuationIsAWordOfItsOwnUnlessItSaysOtherwise) {
  json punctuation = {{"type", "Punctuation"}};
  EXPECT_THAT(Words(punctuation, "a!?b"), ElementsAre("a", "!", "?", "b"));
  punctuation["behavior"] = "Contiguous";
  EXPECT_THAT(Words(punctuation, "a!?b"), ElementsAre("a", "!?", "b"));
  punctuation["behavior"] = "MergedWithPrevious";
  EXPECT_THAT(Words(punctuation, "a!?b"), ElementsAre("a!", "?", "b"));
  punctuation["behavior"] = "MergedWithNext";
  EXPECT_THAT(Words(punctuation, "a!?b"), ElementsAre("a", "!", "?b"));
  punctuation["behavior"] = "Removed";
  EXPECT_THAT(Words(punctuation, "a!?b"), ElementsAre("a", "b"));
}

TEST(PreTokenizerTest, ASplitMayBeTurnedRound) {
  json split = {{"type", "Split"}, {"pattern", {{"Regex", "[0-9]+"}}}, {"behavior", "Removed"}};
  EXPECT_THAT(Words(split, "ab12cd"), ElementsAre("ab", "cd"));
  split["invert"] = true;
  EXPECT_THAT(Words(split, "ab12cd"), ElementsAre("12"));
}

}  // namespace
}  // namespace kvcake
