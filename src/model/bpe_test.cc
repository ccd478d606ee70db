// The rules of BPE that no published tokenizer of the goldens has, or that a golden cannot show.
#include "model/bpe.h"

#include <gtest/gtest.h>

#include <string>

#include "base/peak_rss.h"

namespace kvcake {
namespace {

using Ids = std::vector<int32_t>;

constexpr int32_t kAb = 10, kBc = 11, kAbc = 12;

// Three letters, and what is made of them.
BpeRules Letters() {
  BpeRules rules;
  rules.byte_level = false;
  rules.ids = {{"a", 0}, {"b", 1}, {"c", 2}, {"ab", kAb}, {"bc", kBc}, {"abc", kAbc}};
  return rules;
}

Ids Encode(BpeRules rules, std::string_view word) {
  Ids ids;
  Bpe(std::move(rules), /*cache_words=*/10).Encode(word, &ids);
  return ids;
}

// As Llama 3's do.
TEST(BpeTest, AWordThatIsATokenIsTakenWholeWhereMergesAreIgnored) {
  BpeRules rules = Letters();
  rules.merges = {{1, 2, kBc}};
  EXPECT_EQ(Encode(rules, "abc"), (Ids{0, kBc}));
  rules.whole_words = true;
  EXPECT_EQ(Encode(rules, "abc"), Ids{kAbc});
  EXPECT_EQ(Encode(rules, "abca"), (Ids{0, kBc, 0})) << "a part of a word is none";
}

TEST(BpeTest, APairThatIsListedTwiceCountsByItsLastRank) {
  BpeRules rules = Letters();
  rules.merges = {{0, 1, kAb}, {1, 2, kBc}};
  EXPECT_EQ(Encode(rules, "abc"), (Ids{kAb, 2}));
  rules.merges.push_back({0, 1, kAb});
  EXPECT_EQ(Encode(rules, "abc"), (Ids{0, kBc}));
}

TEST(BpeTest, ACharacterIsUnknownWhereOneOfItsBytesHasNoToken) {
  BpeRules rules = Letters();
  rules.fallback[0xc3] = 100;
  rules.fallback[0xa9] = 101;
  rules.unknown = 99;
  EXPECT_EQ(Encode(rules, "aéb"), (Ids{0, 100, 101, 1}));
  EXPECT_EQ(Encode(rules, "aèb"), (Ids{0, 99, 1}));
  rules.unknown = -1;
  EXPECT_EQ(Encode(rules, "aèb"), (Ids{0, 1}));
}

TEST(BpeTest, UnknownCharactersAreFusedOnlyWhereThatIsSaid) {
  BpeRules rules = Letters();
  rules.unknown = 99;
  EXPECT_EQ(Encode(rules, "axyb"), (Ids{0, 99, 99, 1}));
  rules.fuse_unknown = true;
  EXPECT_EQ(Encode(rules, "axyb"), (Ids{0, 99, 1}));
}

// A server lives for months, and no two texts have the same words.
TEST(BpeTest, NoMoreWordsAreRememberedThanIsSaid) {
#ifdef KVCAKE_SANITIZED
  GTEST_SKIP() << "what is freed stays in memory for a while";
#endif
  constexpr int kWords = 100'000;
  const Bpe bpe(Letters(), /*cache_words=*/100);
  const auto encode = [&](int word) {
    std::string text;
    for (int bit = 0; bit < 100; ++bit) text += word >> bit % 17 & 1 ? 'a' : 'c';
    Ids ids;
    bpe.Encode(text, &ids);
    EXPECT_EQ(ids.size(), 100u);
  };
  for (int word = 0; word < 1000; ++word) encode(word);
  const uint64_t before = RssBytes();
  for (int word = 0; word < kWords; ++word) encode(word);
  EXPECT_LT(RssBytes(), before + (20 << 20)) << "all of them would be sixty megabytes";
}

}  // namespace
}  // namespace kvcake
