// What Hugging Face's tokenizers made of several thousand strings, and what kvcake makes of them.
// tools/goldens/tokenizers.py made the strings, the hashes and the cases.
#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
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
    const json file = json::parse(ReadFile(GetParam().dir + "/tokenizer.json"));
    for (int byte = 0; byte < 256; ++byte) {
      const int32_t id = file["model"]["vocab"].value(fmt::format("<0x{:02X}>", byte), -1);
      if (tokenizer_->Bytes(id) == std::string(1, static_cast<char>(byte))) byte_ids_[byte] = id;
    }
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

  // The text as tokens of byte fallback; none where one of them is missing.
  Ids ByteIds(std::string_view text) const {
    Ids ids;
    for (const char byte : text) {
      const auto id = byte_ids_.find(byte & 0xff);
      if (id == byte_ids_.end()) return {};
      ids.push_back(id->second);
    }
    return ids;
  }

  // The ids with U+FFFD instead of all bytes of a run behind its valid start.
  Ids Mended(const Ids& ids, bool skip_special) const {
    Ids mended;
    std::string run;
    const auto end_run = [&] {
      size_t valid = run.size();
      while (!IsValidUtf8(run.substr(0, valid))) --valid;
      std::string text = run.substr(0, valid);
      for (size_t i = valid; i < run.size(); ++i) text += "\ufffd";
      const Ids bytes = ByteIds(text);
      mended.insert(mended.end(), bytes.begin(), bytes.end());
      run.clear();
    };
    for (const int32_t id : ids) {
      if (!tokenizer_->HasToken(id) || (skip_special && tokenizer_->IsSpecial(id))) continue;
      const std::string bytes = tokenizer_->Bytes(id);
      const auto byte = bytes.size() == 1 ? byte_ids_.find(bytes[0] & 0xff) : byte_ids_.end();
      if (byte != byte_ids_.end() && byte->second == id) {
        run += bytes;
      } else {
        end_run();
        mended.push_back(id);
      }
    }
    end_run();
    return mended;
  }

  void ExpectStreams(const Ids& ids) const {
    if (!byte_ids_.empty() && ByteIds("\ufffd").empty()) return;  // cannot be mended
    for (const bool skip : {false, true}) {
      EXPECT_EQ(Stream(ids, skip), tokenizer_->Decode(Mended(ids, skip), skip)) << json(ids);
    }
  }

  std::unique_ptr<Tokenizer> tokenizer_;
  json golden_;
  std::map<int, int32_t> byte_ids_;  // tokens of byte fallback
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
    EXPECT_EQ(json(tokenizer_->Decode(whole, false)), test["decoded"]) << test["text"];
    EXPECT_EQ(json(tokenizer_->Decode(whole)), test["decoded_skipping"]) << test["text"];
    EXPECT_EQ(json(tokenizer_->Decode(plain, false)), test["decoded_plain"]) << test["text"];
    EXPECT_EQ(json(tokenizer_->Decode(plain)), test["decoded_plain_skipping"]) << test["text"];
    EXPECT_EQ(json(Stream(whole, true)), test["decoded_skipping"]) << test["text"];
  }
}

// An answer behind its prompt: a space at its start is one, unless nothing stands before it.
TEST_P(TokenizerGoldenTest, Continuations) {
  EXPECT_GT(golden_["continuations"].size(), 30u);
  for (const json& test : golden_["continuations"]) {
    EXPECT_EQ(json(Stream(test["ids"], test["skip"], test["before"])), test["text"]) << test;
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
    const std::string texts = tokenizer_->Decode(ids, false) + '\0' + tokenizer_->Decode(ids, true);
    EXPECT_EQ(Sha256Of(texts).substr(0, kHashSize), hashes.substr(i * kHashSize, kHashSize))
        << json(ids);
    ExpectStreams(ids);
  }
}

// Whatever is whole has been streamed, also within a run of byte tokens, and is what Decode says.
TEST_P(TokenizerGoldenTest, WholeCharactersAreStreamedAtOnce) {
  std::mt19937 random(7);
  const char* characters[] = {"\n", "a", " ", "é", "日", "🙂", "\u07ff", "\uffff", "\U0010ffff"};
  for (int i = 0; i < 300; ++i) {
    Detokenizer detokenizer(*tokenizer_);
    Ids ids;
    std::string text;
    for (size_t n = 1 + random() % 12; n > 0; --n) {
      const std::string character = characters[random() % std::size(characters)];
      Ids whole = ByteIds(character);
      if (whole.empty() || random() % 4 == 0) whole = Encode(character, false);
      for (const int32_t id : whole) {
        const std::string piece = detokenizer.Append(id);
        EXPECT_TRUE(IsValidUtf8(piece));
        text += piece;
        ids.push_back(id);
      }
      EXPECT_EQ(text, tokenizer_->Decode(ids)) << json(ids);
    }
    EXPECT_EQ(detokenizer.Finish(), "");
  }
}

TEST_P(TokenizerGoldenTest, RunsOfRandomBytes) {
  if (byte_ids_.empty()) return;
  std::mt19937 random(8);
  int differing = 0;
  for (int i = 0; i < 3000; ++i) {
    Ids ids;
    for (size_t n = 1 + random() % 8; n > 0; --n) {
      const Ids byte =
          ByteIds(std::string(1, "\n \xc3\xa9\xc3\xa9\xf0\x9f\x8d\xff"[random() % 10]));
      ids.insert(ids.end(), byte.begin(), byte.end());
      if (random() % 8 == 0) ids.push_back(static_cast<int32_t>(random() % 300));
    }
    ExpectStreams(ids);
    differing += Stream(ids, true) != tokenizer_->Decode(ids);
  }
  EXPECT_GT(differing, 100);
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
