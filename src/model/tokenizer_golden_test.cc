// What Hugging Face's tokenizers made of several thousand strings, and what kvcake makes of them.
// tools/goldens/tokenizers.py made the strings, the hashes and the cases.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "base/hash.h"
#include "base/source_dir_testing.h"
#include "base/utf8.h"
#include "model/tokenizer.h"

namespace kvcake {
namespace {

using nlohmann::json;
using Ids = std::vector<int32_t>;

const std::string kSource = SourceDir();
const std::string kGolden = kSource + "/tests/golden/tokenizers/";
constexpr size_t kHashSize = 8;

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string Sha256Of(const std::string& text) {
  Sha256 sha;
  sha.Update(text);
  return ToHex(sha.Finish());
}

struct GoldenCase {
  const char* name;
  std::string dir;
  std::string golden;
};

class TokenizerGoldenTest : public testing::TestWithParam<GoldenCase> {
 protected:
  void SetUp() override {
    auto loaded = Tokenizer::Load(GetParam().dir);
    ASSERT_TRUE(loaded) << loaded.error().message;
    tokenizer_ = std::make_unique<Tokenizer>(*std::move(loaded));
    golden_ = json::parse(ReadFile(GetParam().golden));
    ASSERT_EQ(golden_["tokenizer_sha256"], Sha256Of(ReadFile(GetParam().dir + "/tokenizer.json")))
        << "tokenizer.json has changed: run tools/make_goldens.py";
    EXPECT_EQ(tokenizer_->vocab_size(), golden_["vocab_size"]);
  }

  static const json& Strings() {
    static const json strings = json::parse(ReadFile(kGolden + "strings.json"));
    return strings;
  }

  Ids Encode(const std::string& text, bool add_special) const {
    const auto ids = tokenizer_->Encode(text, add_special);
    EXPECT_TRUE(ids) << ids.error().message;
    return ids ? *ids : Ids();
  }

  // As Detokenizer streams it; every piece must be whole characters.
  std::string Stream(const Ids& ids, bool skip_special, const Ids& before = {}) const {
    Detokenizer detokenizer(*tokenizer_, skip_special, before);
    std::string text;
    for (const int32_t id : ids) {
      const std::string piece = detokenizer.Append(id);
      EXPECT_TRUE(IsValidUtf8(piece));
      text += piece;
    }
    return text + detokenizer.Finish();
  }

  static std::string Joined(const Ids& ids) {
    std::string text;
    for (const int32_t id : ids) {
      if (!text.empty()) text += ',';
      text += std::to_string(id);
    }
    return text;
  }

  std::string HashOf(const std::string& text) const {
    const Ids plain = Encode(text, false);
    const Ids whole = Encode(text, true);
    std::string all = Joined(plain) + '\0' + Joined(whole);
    for (const auto& [ids, skip] : {std::pair(&whole, false), std::pair(&whole, true),
                                    std::pair(&plain, false), std::pair(&plain, true)}) {
      all += '\0' + Stream(*ids, skip);
    }
    return Sha256Of(all).substr(0, kHashSize);
  }

  // How many of the strings differ; shows the first few.
  void ExpectHashes(const std::vector<std::string>& strings, const std::string& hashes) const {
    ASSERT_EQ(strings.size() * kHashSize, hashes.size());
    int differing = 0;
    for (size_t i = 0; i < strings.size(); ++i) {
      EXPECT_GE(tokenizer_->Encode(strings[i], /*add_special=*/false)->size(),
                tokenizer_->TokensAtLeast(strings[i].size()))
          << json(strings[i]);
      if (HashOf(strings[i]) == hashes.substr(i * kHashSize, kHashSize)) continue;
      if (++differing <= 5) ADD_FAILURE() << "string " << i << ": " << json(strings[i]);
    }
    EXPECT_EQ(differing, 0) << "of " << strings.size();
  }

  std::unique_ptr<Tokenizer> tokenizer_;
  json golden_;
};

std::vector<GoldenCase> Cases() {
  std::vector<GoldenCase> cases;
  for (const char* name :
       {"gpt2", "llama3", "qwen2", "falcon", "mixed", "llama2", "mistral", "gemma", "metaspace"}) {
    cases.push_back({name, kGolden + name, kGolden + name + "/cases.json"});
  }
  cases.push_back({"demo", kSource + "/models/demo", kGolden + "demo_cases.json"});
  return cases;
}

INSTANTIATE_TEST_SUITE_P(All, TokenizerGoldenTest, testing::ValuesIn(Cases()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(TokenizerGoldenTest, Cases) {
  for (const json& test : golden_["cases"]) {
    const auto text = test["text"].get<std::string>();
    const Ids plain = test["ids"], whole = test["with_special"];
    EXPECT_EQ(Encode(text, false), plain) << test["text"];
    EXPECT_EQ(Encode(text, true), whole) << test["text"];
    EXPECT_EQ(tokenizer_->Decode(whole, false), test["decoded"]) << test["text"];
    EXPECT_EQ(tokenizer_->Decode(whole), test["decoded_skipping"]) << test["text"];
    EXPECT_EQ(tokenizer_->Decode(plain, false), test["decoded_plain"]) << test["text"];
    EXPECT_EQ(tokenizer_->Decode(plain), test["decoded_plain_skipping"]) << test["text"];
    EXPECT_EQ(Stream(whole, true), test["decoded_skipping"]) << test["text"];
  }
}

// An answer behind its prompt: a space at its start is one, unless nothing stands before it.
TEST_P(TokenizerGoldenTest, Continuations) {
  EXPECT_GT(golden_["continuations"].size(), 30u);
  for (const json& test : golden_["continuations"]) {
    EXPECT_EQ(Stream(test["ids"], test["skip"], test["before"]), test["text"]) << test;
  }
}

TEST_P(TokenizerGoldenTest, FixedStrings) {
  ExpectHashes(Strings()["fixed"].get<std::vector<std::string>>(), golden_["fixed"]);
}

TEST_P(TokenizerGoldenTest, RandomStrings) {
  ExpectHashes(Strings()["random"].get<std::vector<std::string>>(), golden_["random"]);
}

TEST_P(TokenizerGoldenTest, EveryCharacter) {
  const auto block = Strings()["block"].get<size_t>();
  const std::string between[] = {"a", " ", "1", "é"};
  std::vector<std::string> strings;
  size_t in_block = block;
  for (const json& range : Strings()["ranges"]) {
    for (auto code = range[0].get<char32_t>(); code <= range[1].get<char32_t>(); ++code) {
      if (in_block == block) {
        strings.emplace_back();
        in_block = 0;
      }
      AppendUtf8(code, &strings.back());
      strings.back() += between[in_block++ % 4];
    }
  }
  ExpectHashes(strings, golden_["blocks"]);
}

TEST_P(TokenizerGoldenTest, RandomIdsDecode) {
  uint64_t state = 1;
  const auto draw = [&](uint64_t n) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<int32_t>((state >> 33) % n);
  };
  const auto hashes = golden_["random_ids"].get<std::string>();
  for (int i = 0; i < Strings()["random_ids"]; ++i) {
    Ids ids(1 + draw(24));
    for (int32_t& id : ids) id = draw(golden_["vocab_size"]);
    const std::string texts = Stream(ids, false) + '\0' + Stream(ids, true);
    EXPECT_EQ(Sha256Of(texts).substr(0, kHashSize), hashes.substr(i * kHashSize, kHashSize))
        << json(ids);
    EXPECT_EQ(tokenizer_->Decode(ids, false), Stream(ids, false));
  }
}

TEST_P(TokenizerGoldenTest, InvalidUtf8CountsAsReplacementCharacters) {
  std::mt19937 random(4);
  for (int i = 0; i < 300; ++i) {
    std::string text;
    for (size_t n = random() % 40; n > 0; --n) {
      text += random() % 2 ? static_cast<char>(random()) : " ab\xc3\xe2\x96"[random() % 6];
    }
    EXPECT_EQ(Encode(text, true), Encode(ReplaceInvalidUtf8(text), true));
  }
}

}  // namespace
}  // namespace kvcake
