#include "model/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "base/hash.h"
#include "model/byte_level.h"
#include "model/synth.h"

namespace kvcake {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using Ids = std::vector<int32_t>;

const std::string kGolden = std::string(KVCAKE_SOURCE_DIR) + "/tests/golden/tokenizers/";

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

// What Hugging Face's tokenizers made of several hundred strings.
struct GoldenCase {
  const char* name;
  std::string dir;
  std::string cases;
};

class TokenizerGoldenTest : public testing::TestWithParam<GoldenCase> {};

INSTANTIATE_TEST_SUITE_P(
    All, TokenizerGoldenTest,
    testing::Values(GoldenCase{"gpt2", kGolden + "gpt2", kGolden + "gpt2/cases.json"},
                    GoldenCase{"llama3", kGolden + "llama3", kGolden + "llama3/cases.json"},
                    GoldenCase{"qwen2", kGolden + "qwen2", kGolden + "qwen2/cases.json"},
                    GoldenCase{"mixed", kGolden + "mixed", kGolden + "mixed/cases.json"},
                    GoldenCase{"demo", std::string(KVCAKE_SOURCE_DIR) + "/models/demo",
                               kGolden + "demo_cases.json"}),
    [](const auto& info) { return std::string(info.param.name); });

TEST_P(TokenizerGoldenTest, AgreesWithHuggingFace) {
  const auto tokenizer = Tokenizer::Load(GetParam().dir);
  ASSERT_TRUE(tokenizer) << tokenizer.error().message;
  const json golden = json::parse(ReadFile(GetParam().cases));
  Sha256 sha;
  sha.Update(ReadFile(GetParam().dir + "/tokenizer.json"));
  ASSERT_EQ(golden["tokenizer_sha256"], ToHex(sha.Finish()))
      << "tokenizer.json has changed: run tools/make_goldens.py tokenizers";
  for (const json& test : golden["cases"]) {
    const auto text = test["text"].get<std::string>();
    const auto ids = test["ids"].get<Ids>();
    Ids whole = test.value("before", Ids());
    whole.insert(whole.end(), ids.begin(), ids.end());
    const Ids after = test.value("after", Ids());
    whole.insert(whole.end(), after.begin(), after.end());
    const auto encoded = tokenizer->Encode(text);
    ASSERT_TRUE(encoded) << encoded.error().message;
    EXPECT_EQ(*encoded, whole) << test["text"];
    EXPECT_EQ(*tokenizer->Encode(text, false), ids) << test["text"];
    const auto decoded = test.value("decoded", text);
    EXPECT_EQ(tokenizer->Decode(ids, false), decoded);
    EXPECT_EQ(tokenizer->Decode(whole), test.value("decoded_skipping", decoded));
    Detokenizer detokenizer(*tokenizer, false);
    std::string streamed;
    for (const int32_t id : ids) streamed += detokenizer.Append(id);
    EXPECT_EQ(streamed + detokenizer.Finish(), decoded);
  }
}

// A tokenizer.json to damage, in a directory of its own.
class TokenizerFileTest : public testing::Test {
 protected:
  void SetUp() override {
    dir_ = testing::TempDir() + "/kvcake_tokenizer_" +
           testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(dir_);
    ASSERT_TRUE(WriteSynthModel("tiny", dir_));
    good_ = json::parse(ReadFile(dir_ + "/tokenizer.json"));
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }

  Result<Tokenizer> Load(const json& file) const {
    std::ofstream(dir_ + "/tokenizer.json", std::ios::binary) << file.dump();
    return Tokenizer::Load(dir_);
  }
  void ExpectRefused(const char* pointer, const json& value, ErrorCode code,
                     const std::string& part) const {
    json file = good_;
    file[json::json_pointer(pointer)] = value;
    const auto loaded = Load(file);
    ASSERT_FALSE(loaded) << pointer << " = " << value;
    EXPECT_EQ(loaded.error().code, code) << loaded.error().message;
    EXPECT_THAT(loaded.error().message, HasSubstr("tokenizer.json"));
    EXPECT_THAT(loaded.error().message, HasSubstr(part));
    EXPECT_LT(loaded.error().message.size(), 1000u);
  }

  std::string dir_;
  json good_;
};

TEST_F(TokenizerFileTest, ReadsBytesAndSpecialTokens) {
  const auto tokenizer = Load(good_);
  ASSERT_TRUE(tokenizer) << tokenizer.error().message;
  EXPECT_EQ(tokenizer->vocab_size(), 258);
  EXPECT_EQ(*tokenizer->Encode("Hi \n<|eos|>"), (Ids{kSynthBos, 'H', 'i', ' ', '\n', kSynthEos}));
  EXPECT_EQ(*tokenizer->Encode("", false), Ids());
  EXPECT_EQ(*tokenizer->Encode("a\xff"
                               "b",
                               false),
            (Ids{'a', 0xef, 0xbf, 0xbd, 'b'}));
  EXPECT_EQ(tokenizer->Decode(Ids{kSynthBos, 'H', 'i', -1, 511, 1 << 30}), "Hi");
  EXPECT_EQ(tokenizer->Decode(Ids{kSynthBos, 'H'}, false), "<|bos|>H");
  EXPECT_EQ(tokenizer->Decode(Ids{0xe2, 0x82, 'x'}), "\xef\xbf\xbdx");
  EXPECT_EQ(tokenizer->TokenId("<|eos|>"), kSynthEos);
  EXPECT_EQ(tokenizer->TokenId("\u0120"), ' ');
  EXPECT_EQ(tokenizer->TokenId("no such"), std::nullopt);
  EXPECT_TRUE(tokenizer->IsSpecial(kSynthBos));
  EXPECT_FALSE(tokenizer->IsSpecial('a'));
  EXPECT_FALSE(tokenizer->IsSpecial(-1));
}

TEST_F(TokenizerFileTest, RefusesByNameWhatItCannotDo) {
  constexpr auto kCode = ErrorCode::kUnsupported;
  ExpectRefused("/model/type", "Unigram", kCode, "Unigram");
  ExpectRefused("/model/dropout", 0.1, kCode, "dropout");
  ExpectRefused("/model/continuing_subword_prefix", "##", kCode, "continuing_subword_prefix");
  ExpectRefused("/model/end_of_word_suffix", "</w>", kCode, "end_of_word_suffix");
  ExpectRefused("/normalizer", {{"type", "NFKC"}}, kCode, "NFKC");
  ExpectRefused("/pre_tokenizer", {{"type", "Metaspace"}}, kCode, "Metaspace");
  ExpectRefused("/pre_tokenizer", nullptr, kCode, "pre_tokenizer");
  ExpectRefused("/post_processor", {{"type", "BertProcessing"}}, kCode, "BertProcessing");
  ExpectRefused("/decoder", {{"type", "Metaspace"}}, kCode, "Metaspace");
  ExpectRefused("/decoder", nullptr, kCode, "decoder");
  ExpectRefused("/added_tokens/0/single_word", true, kCode, "single_word");
  const auto split = [](const char* pattern) -> json {
    return {{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}};
  };
  for (const char* pattern :
       {"\\w+", "\\bx", "[a-z&&[^b]]", "a{2}+", "a{2}?", "a{,2}b", "a(?i)b|c", "\\h", "(?<n>x)",
        "x*", "[a", "(a", "\\p{Nonsense}", "[[:alpha:]]", "(?R)", "(*FAIL)", "\\"}) {
    ExpectRefused("/pre_tokenizer", split(pattern), kCode, "split pattern");
  }
}

TEST_F(TokenizerFileTest, RefusesContradictions) {
  constexpr auto kCode = ErrorCode::kInvalidArgument;
  ExpectRefused("/model/merges", {"a zz"}, kCode, "merge 0");
  ExpectRefused("/model/merges", json::array({json::array({"a", "b"})}), kCode, "needs token ab");
  ExpectRefused("/model/merges", {"ab"}, kCode, "no pair");
  ExpectRefused("/model/merges", {"a b c"}, kCode, "no pair");
  ExpectRefused("/model/merges", {5}, kCode, "no pair");
  ExpectRefused("/model/merges", 5, kCode, "merges");
  ExpectRefused("/model/vocab", json::array(), kCode, "vocab");
  ExpectRefused("/model/vocab/a", 98, kCode, "two tokens have id 98");
  ExpectRefused("/model/vocab/a", -1, kCode, "has id -1");
  ExpectRefused("/model/vocab/a", 1 << 30, kCode, "has id 1073741824");
  ExpectRefused("/model/vocab/a", "x", kCode, "has id");
  ExpectRefused("/model/vocab/a", 1e300, kCode, "has id");
  ExpectRefused(("/model/vocab/" + std::string(10 << 20, 'x')).c_str(), 300, kCode, "10485760");
  ExpectRefused("/added_tokens/0/id", 7, kCode, "two tokens have id 7");
  ExpectRefused("/added_tokens/0/content", "a", kCode, "has id 256, but in model.vocab");
  ExpectRefused("/post_processor/special_tokens", json::object(), kCode, "no ids");
  ExpectRefused("/post_processor/single", json::array(), kCode, "sequence once");
  EXPECT_FALSE(Load(nullptr));
  EXPECT_FALSE(Load(json::array()));
}

TEST_F(TokenizerFileTest, SurvivesRandomDamage) {
  std::mt19937 random(3);
  const std::string good = good_.dump();
  int loaded = 0;
  for (int i = 0; i < 400; ++i) {
    std::string text = good;
    const int edits = 1 + static_cast<int>(random() % 3);
    for (int e = 0; e < edits; ++e) {
      const size_t at = random() % text.size();
      if (random() % 2) {
        text[at] = static_cast<char>(random());
      } else {
        text.erase(at, random() % 20);
      }
    }
    std::ofstream(dir_ + "/tokenizer.json", std::ios::binary) << text;
    const auto tokenizer = Tokenizer::Load(dir_);
    if (!tokenizer) continue;
    ++loaded;
    const auto ids = tokenizer->Encode("Any text <|eos|> at all.");
    if (ids) tokenizer->Decode(*ids);
  }
  EXPECT_LT(loaded, 400);
}

TEST_F(TokenizerFileTest, LongWordsAreNotQuadratic) {
  // 2 MB of one word: it ends within the test's time limit only if merging is not quadratic.
  json file = good_;
  for (const auto& [text, id] : {std::pair("aa", 300), std::pair("aaaa", 301)}) {
    file["model"]["vocab"][text] = id;
  }
  file["model"]["merges"] = {"a a", "aa aa"};
  const auto tokenizer = Load(file);
  ASSERT_TRUE(tokenizer) << tokenizer.error().message;
  const auto ids = tokenizer->Encode(std::string((2 << 20) + 3, 'a'), false);
  ASSERT_TRUE(ids);
  EXPECT_EQ(ids->size(), (2u << 20) / 4 + 2);
  EXPECT_EQ(ids->front(), 301);
  EXPECT_EQ(ids->back(), 'a');
  const auto spaces = tokenizer->Encode(std::string(1 << 20, ' ') + "x", false);
  ASSERT_TRUE(spaces);
  EXPECT_EQ(spaces->size(), (1u << 20) + 1);
}

// What the pairs of adjacent tokens make, done the slow way.
Ids NaiveBpe(const std::string& word, const json& model) {
  std::vector<std::string> parts;
  for (const char c : word) parts.push_back(ByteAsText(static_cast<unsigned char>(c)));
  for (;;) {
    size_t best = SIZE_MAX, at = 0;
    for (size_t i = 0; i + 1 < parts.size(); ++i) {
      for (size_t rank = 0; rank < model["merges"].size() && rank < best; ++rank) {
        const json& merge = model["merges"][rank];
        if (merge[0] == parts[i] && merge[1] == parts[i + 1]) {
          best = rank;
          at = i;
        }
      }
    }
    if (best == SIZE_MAX) break;
    parts[at] += parts[at + 1];
    parts.erase(parts.begin() + static_cast<int64_t>(at) + 1);
  }
  Ids ids;
  for (const std::string& part : parts) ids.push_back(model["vocab"][part]);
  return ids;
}

TEST_F(TokenizerFileTest, MergesAsTheNaiveAlgorithmDoes) {
  std::mt19937 random(9);
  for (int round = 0; round < 20; ++round) {
    json file = good_;
    json& model = file["model"];
    std::vector<std::string> tokens = {"a", "b", "c"};
    while (model["merges"].size() < 25) {
      const std::string left = tokens[random() % tokens.size()];
      const std::string right = tokens[random() % tokens.size()];
      const std::string merged = left + right;
      if (merged.size() > 12 || model["vocab"].contains(merged)) continue;
      model["vocab"][merged] = 300 + model["merges"].size();
      model["merges"].push_back({left, right});
      tokens.push_back(merged);
    }
    const auto tokenizer = Load(file);
    ASSERT_TRUE(tokenizer) << tokenizer.error().message;
    for (int i = 0; i < 20; ++i) {
      std::string word;
      for (size_t n = 1 + random() % 30; n > 0; --n) word += "abc"[random() % 3];
      EXPECT_EQ(*tokenizer->Encode(word, false), NaiveBpe(word, model)) << word;
    }
  }
}

TEST(TokenizerTest, ManyThreadsShareOneTinyCache) {
  const auto tokenizer = Tokenizer::Load(kGolden + "gpt2", {.cache_words = 5});
  ASSERT_TRUE(tokenizer);
  std::string text;
  for (int i = 0; i < 300; ++i) text += "word" + std::to_string(i % 11) + " and another ";
  const Ids expected = *tokenizer->Encode(text);
  std::vector<std::jthread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 20; ++i) EXPECT_EQ(*tokenizer->Encode(text), expected);
    });
  }
}

TEST(TokenizerTest, RandomBytesComeBack) {
  const auto tokenizer = Tokenizer::Load(kGolden + "gpt2");
  ASSERT_TRUE(tokenizer);
  std::mt19937 random(1);
  for (int i = 0; i < 500; ++i) {
    std::string text;
    for (size_t n = random() % 60; n > 0; --n) text += static_cast<char>(random());
    const auto ids = tokenizer->Encode(text, false);
    ASSERT_TRUE(ids);
    const std::string decoded = tokenizer->Decode(*ids, false);
    EXPECT_EQ(*tokenizer->Encode(decoded, false), *ids);  // damage was replaced the first time
  }
}

}  // namespace
}  // namespace kvcake
