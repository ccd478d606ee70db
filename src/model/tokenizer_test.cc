#include "model/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "base/source_dir_testing.h"
#include "base/temp_dir_testing.h"
#include "model/byte_level.h"
#include "model/synth.h"

namespace kvcake {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using Ids = std::vector<int32_t>;

const std::string kTokenizers = SourceDir() + "/tests/golden/tokenizers/";

std::string ReadText(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

// A tokenizer.json to damage, in a directory of its own.
class TokenizerFileTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(WriteSynthModel("tiny", dir_));
    good_ = json::parse(ReadText(dir_ + "/tokenizer.json"));
  }

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

  const TempDir temp_;
  const std::string dir_ = temp_.path();
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
  EXPECT_EQ(*tokenizer->Encode("<|eos|> ", false), (Ids{kSynthEos, ' '}));
  EXPECT_TRUE(tokenizer->IsSpecial(kSynthBos));
  EXPECT_FALSE(tokenizer->IsSpecial('a'));
  EXPECT_FALSE(tokenizer->IsSpecial(-1));
}

TEST_F(TokenizerFileTest, RefusesByNameWhatItCannotDo) {
  constexpr auto kCode = ErrorCode::kUnsupported;
  for (const char* type : {"Unigram", "WordPiece", "WordLevel"}) {
    ExpectRefused("/model/type", type, kCode, type);
  }
  ExpectRefused("/model/dropout", 0.1, kCode, "dropout");
  ExpectRefused("/model/continuing_subword_prefix", "##", kCode, "continuing_subword_prefix");
  ExpectRefused("/model/end_of_word_suffix", "</w>", kCode, "end_of_word_suffix");
  for (const char* type : {"NFKC", "NFD", "Lowercase", "Strip", "Precompiled", "BertNormalizer"}) {
    ExpectRefused("/normalizer", {{"type", type}}, kCode, type);
  }
  ExpectRefused("/normalizer", {{"type", "Replace"}, {"pattern", {{"Regex", " +"}}}}, kCode,
                "normalizer.pattern Regex");
  const json metaspace = {{"type", "Metaspace"}, {"replacement", "_"}};
  const json byte_level = {{"type", "ByteLevel"}};
  const auto sequence = [](const char* list, const json& inner) -> json {
    return {{"type", "Sequence"}, {list, inner}};
  };
  ExpectRefused("/pre_tokenizer", {{"type", "Whitespace"}}, kCode, "Whitespace");
  ExpectRefused("/pre_tokenizer", sequence("pretokenizers", {metaspace, byte_level}), kCode,
                "ByteLevel together with Metaspace");
  ExpectRefused("/pre_tokenizer", sequence("pretokenizers", {byte_level, byte_level}), kCode,
                "second ByteLevel");
  ExpectRefused("/pre_tokenizer", nullptr, kCode, "decoder ByteLevel without");
  ExpectRefused("/post_processor", {{"type", "BertProcessing"}}, kCode, "BertProcessing");
  const json post = good_["post_processor"];
  ExpectRefused("/post_processor", sequence("processors", {post, post}), kCode,
                "processors[1] a second TemplateProcessing");
  ExpectRefused("/decoder", metaspace, kCode, "ByteLevel");
  ExpectRefused("/decoder", nullptr, kCode, "decoder");
  ExpectRefused("/decoder", {{"type", "WordPiece"}}, kCode, "WordPiece");
  const auto split = [](const char* pattern) -> json {
    return {{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}};
  };
  for (const char* pattern :
       {"\\w+", "\\bx", "[a-z&&[^b]]", "a{2}+", "a{2}?", "a{,2}b", "a(?i)b|c", "\\h", "(?<n>x)",
        "x*", "[a", "(a", "\\p{Nonsense}", "[[:alpha:]]", "(?R)", "(*FAIL)", "\\"}) {
    ExpectRefused("/pre_tokenizer", split(pattern), kCode, "split pattern");
  }
}

TEST_F(TokenizerFileTest, RefusesDecodersThatCannotBeStreamed) {
  json file = good_;
  file["pre_tokenizer"] = nullptr;
  const auto expect = [&](const json& steps, const char* part) {
    file["decoder"] = {{"type", "Sequence"}, {"decoders", steps}};
    const auto loaded = Load(file);
    ASSERT_FALSE(loaded) << steps;
    EXPECT_EQ(loaded.error().code, ErrorCode::kUnsupported) << loaded.error().message;
    EXPECT_THAT(loaded.error().message, HasSubstr(part));
  };
  const json fuse = {{"type", "Fuse"}};
  const json replace = {{"type", "Replace"}, {"pattern", {{"String", "_"}}}, {"content", " "}};
  const json bytes = {{"type", "ByteFallback"}};
  const auto strip = [](int start, int stop) -> json {
    return {{"type", "Strip"}, {"content", " "}, {"start", start}, {"stop", stop}};
  };
  file["decoder"] = {{"type", "Sequence"}, {"decoders", {replace, bytes, fuse, strip(1, 0)}}};
  EXPECT_TRUE(Load(file));
  expect({fuse, replace}, "decoders[1] Replace at this place");
  expect({bytes, strip(1, 0)}, "decoders[1] Strip at this place");
  expect({fuse, strip(0, 1)}, "Strip of the end");
  expect({fuse, bytes}, "decoders[1] ByteFallback at this place");
  expect({bytes, {{"type", "Metaspace"}, {"replacement", "_"}}}, "Metaspace at this place");
}

TEST_F(TokenizerFileTest, RefusesContradictions) {
  constexpr auto kCode = ErrorCode::kInvalidArgument;
  ExpectRefused("/model/merges", {"a zz"}, kCode, "model.merges[0]");
  ExpectRefused("/model/merges", json::array({json::array({"a", "b"})}), kCode, "needs token ab");
  ExpectRefused("/model/merges", {"ab"}, kCode, "no pair");
  ExpectRefused("/model/merges", {"a b c"}, kCode, "no pair");
  ExpectRefused("/model/merges", {5}, kCode, "no pair");
  ExpectRefused("/model/merges", json::array({json::array({"a", 5})}), kCode, "no pair");
  ExpectRefused("/model/merges", json::array({json::array({"a", "b", "c"})}), kCode, "no pair");
  ExpectRefused("/model/merges", 5, kCode, "model.merges is 5");
  ExpectRefused("/model/vocab", json::array(), kCode, "model.vocab");
  ExpectRefused("/model/vocab", json::object(), kCode, "model.vocab");
  ExpectRefused("/model/vocab/a", 98, kCode, "two tokens have id 98");
  ExpectRefused("/model/vocab/a", -1, kCode, "id -1");
  ExpectRefused("/model/vocab/a", 1 << 30, kCode, "id 1073741824");
  ExpectRefused("/model/vocab/a", "x", kCode, "id \"x\"");
  ExpectRefused("/model/vocab/a", 1e300, kCode, "id 1e+300");
  ExpectRefused("/model/vocab/a", nullptr, kCode, "token a");
  ExpectRefused(("/model/vocab/" + std::string(10 << 20, 'x')).c_str(), 300, kCode, "10485760");
  ExpectRefused("/model/unk_token", 7, kCode, "model.unk_token is 7");
  ExpectRefused("/added_tokens/0/id", 7, kCode, "two tokens have id 7");
  ExpectRefused("/added_tokens/0/id", 300, kCode, "Hugging Face");
  ExpectRefused("/added_tokens/0/id", -1, kCode, "added_tokens[0].id is -1");
  ExpectRefused("/added_tokens/0/content", "a", kCode, "has id 256, but in model.vocab");
  ExpectRefused("/added_tokens/1/content", "<|bos|>", kCode, "listed twice");
  ExpectRefused("/added_tokens/0/content", "", kCode, "added_tokens[0].content is empty");
  ExpectRefused("/added_tokens/0", "x", kCode, "added_tokens[0].content is missing");
  ExpectRefused("/post_processor/special_tokens", json::object(), kCode, "special_tokens");
  ExpectRefused("/post_processor/special_tokens/<|bos|>/ids/0", 300, kCode,
                "ids[0] is 300, which no token has");
  ExpectRefused("/post_processor/single", json::array(), kCode, "sequence once");
  ExpectRefused("/post_processor/single/1/Sequence/id", "B", kCode, "single[1].Sequence");
  ExpectRefused("/pre_tokenizer", {{"type", "Metaspace"}, {"replacement", "ab"}}, kCode,
                "pre_tokenizer.replacement must be one character");
  ExpectRefused("/normalizer", {{"type", "Prepend"}}, kCode, "normalizer.prepend is missing");
  EXPECT_FALSE(Load(nullptr));
  EXPECT_FALSE(Load(json::array()));
}

TEST_F(TokenizerFileTest, EveryFieldOfAWrongTypeIsNamed) {
  const json fields = good_.flatten();
  const auto skipped = [](const std::string& pointer) {
    // Free texts, and what is not read; one entry of the vocabulary stands for all.
    for (const char* part : {"/version", "/pair/", "/type_id", "/tokens/", "/trim_offsets", "/id",
                             "/decoder/add_prefix_space", "/decoder/use_regex"}) {
      if (pointer.find(part) != std::string::npos) return true;
    }
    return pointer.starts_with("/model/vocab/") && pointer != "/model/vocab/a";
  };
  int refused = 0;
  for (const auto& [pointer, value] : fields.items()) {
    if (skipped(pointer) || value.is_null() || value.is_array()) continue;
    for (const json& wrong : {json("x"), json(5), json(true), json::array({1}), json({{"a", 1}})}) {
      if (value.type() == wrong.type() || (value.is_number() && wrong.is_number())) continue;
      json file = good_;
      file[json::json_pointer(pointer)] = wrong;
      const auto loaded = Load(file);
      ASSERT_FALSE(loaded) << pointer << " = " << wrong;
      const std::string field = pointer.substr(1, pointer.find('/', 1) - 1);
      EXPECT_THAT(loaded.error().message, HasSubstr("tokenizer.json: " + field)) << pointer;
      ++refused;
    }
  }
  EXPECT_GT(refused, 60);
}

TEST_F(TokenizerFileTest, RefusesWhatIsTooLargeOrNotJson) {
  const auto load_text = [&](const std::string& text) {
    std::ofstream(dir_ + "/tokenizer.json", std::ios::binary) << text;
    return Tokenizer::Load(dir_);
  };
  EXPECT_THAT(load_text("").error().message, HasSubstr("tokenizer.json"));
  EXPECT_THAT(load_text("{\"model\": ").error().message, HasSubstr("not JSON"));
  EXPECT_THAT(load_text("\x7f"
                        "ELF")
                  .error()
                  .message,
              HasSubstr("not JSON"));
  EXPECT_THAT(load_text(std::string(1 << 20, '[')).error().message, HasSubstr("nested deeper"));
  std::string many = "[";
  for (int i = 0; i < 5 << 20; ++i) many += "0,";
  EXPECT_THAT(load_text(many + "0]").error().message, HasSubstr("values"));
  std::filesystem::remove(dir_ + "/tokenizer.json");
  EXPECT_EQ(Tokenizer::Load(dir_).error().code, ErrorCode::kNotFound);
  Load(good_);
  EXPECT_EQ(Tokenizer::Load(dir_, {.max_file_bytes = 1000}).error().code,
            ErrorCode::kResourceExhausted);
  const auto small = Tokenizer::Load(dir_, {.max_text_bytes = 10});
  ASSERT_TRUE(small);
  EXPECT_TRUE(small->Encode("0123456789"));
  EXPECT_EQ(small->Encode("0123456789a").error().code, ErrorCode::kResourceExhausted);
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
  file["post_processor"] = nullptr;
  file["added_tokens"] = json::array();
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

// What merging makes of the parts, done the slow way.
Ids NaiveBpe(std::vector<std::string> parts, const json& model) {
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

// Twenty-five random merges of these.
void AddMerges(const std::vector<std::string>& letters, std::mt19937* random, json* model) {
  std::vector<std::string> tokens = letters;
  while ((*model)["merges"].size() < 25) {
    const std::string left = tokens[(*random)() % tokens.size()];
    const std::string right = tokens[(*random)() % tokens.size()];
    const std::string merged = left + right;
    if (merged.size() > 12 || (*model)["vocab"].contains(merged)) continue;
    (*model)["vocab"][merged] = 1000 + (*model)["merges"].size();
    (*model)["merges"].push_back({left, right});
    tokens.push_back(merged);
  }
}

TEST_F(TokenizerFileTest, MergesAsTheNaiveAlgorithmDoes) {
  std::mt19937 random(9);
  for (int round = 0; round < 30; ++round) {
    json file = good_;
    file["added_tokens"] = json::array();
    file["post_processor"] = nullptr;
    std::vector<std::string> letters = {"a", "b", "c"};
    const bool characters = round % 2 == 1;
    if (characters) {  // as SentencePiece does: no bytes, no words
      file["pre_tokenizer"] = nullptr;
      file["decoder"] = {{"type", "Fuse"}};
      letters = {"a", "é", "▁"};
      file["model"]["vocab"] = {{"a", 0}, {"é", 1}, {"▁", 2}, {"d", 3}};
    }
    AddMerges(letters, &random, &file["model"]);
    const auto tokenizer = Load(file);
    ASSERT_TRUE(tokenizer) << tokenizer.error().message;
    letters.push_back("d");  // never merged: long words are cut beside it
    for (int i = 0; i < 20; ++i) {
      std::vector<std::string> parts;
      std::string word;
      for (size_t n = 1 + random() % (i < 15 ? 30 : 400); n > 0; --n) {
        parts.push_back(letters[random() % letters.size()]);
        word += parts.back();
      }
      EXPECT_EQ(*tokenizer->Encode(word, false), NaiveBpe(parts, file["model"])) << word;
    }
  }
}

// A model of three letters with byte tokens, in which the first token is dropped of its "▁".
class ByteFallbackTest : public TokenizerFileTest {
 protected:
  void SetUp() override {
    TokenizerFileTest::SetUp();
    json vocab = {{"<unk>", 256}, {"▁", 257}, {"a", 258}, {"▁a", 259}, {"<s>", 260}};
    for (int byte = 0; byte < 256; ++byte) vocab[fmt::format("<0x{:02X}>", byte)] = byte;
    good_["model"]["vocab"] = vocab;
    good_["model"]["merges"] = {"▁ a"};
    good_["model"]["byte_fallback"] = true;
    good_["model"]["unk_token"] = "<unk>";
    good_["added_tokens"] = {{{"id", 260}, {"content", "<s>"}, {"special", true}}};
    good_["post_processor"] = nullptr;
    good_["normalizer"] = {
        {"type", "Sequence"},
        {"normalizers",
         {{{"type", "Prepend"}, {"prepend", "▁"}},
          {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "▁"}}}}};
    good_["pre_tokenizer"] = nullptr;
    good_["decoder"] = {{"type", "Sequence"},
                        {"decoders",
                         {{{"type", "Replace"}, {"pattern", {{"String", "▁"}}}, {"content", " "}},
                          {{"type", "ByteFallback"}},
                          {{"type", "Fuse"}},
                          {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}}}};
  }
};

TEST_F(ByteFallbackTest, EncodesWhatIsNoTokenAsBytes) {
  const auto tokenizer = Load(good_);
  ASSERT_TRUE(tokenizer) << tokenizer.error().message;
  EXPECT_EQ(*tokenizer->Encode("a é"), (Ids{259, 257, 0xc3, 0xa9}));
  EXPECT_EQ(*tokenizer->Encode("<s>a"), (Ids{260, 259}));
  EXPECT_EQ(*tokenizer->Encode(""), Ids());
}

TEST_F(ByteFallbackTest, ReplacementsThatExplodeAreRefused) {
  const auto replace = [](const std::string& to) -> json {
    return {{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", to}};
  };
  const std::string many(1000, 'a');
  json file = good_;
  file["normalizer"]["normalizers"] = {replace(many), replace(many), replace(many), replace(many)};
  const auto tokenizer = Load(file);
  ASSERT_TRUE(tokenizer) << tokenizer.error().message;
  EXPECT_TRUE(tokenizer->Encode("b"));
  EXPECT_EQ(tokenizer->Encode("a").error().code, ErrorCode::kResourceExhausted);

  file = good_;
  file["decoder"]["decoders"] = {replace(many), replace(many)};
  EXPECT_THAT(Load(file).error().message, HasSubstr("model.vocab decodes to too long a text"));
  file = good_;
  for (int i = 0; i < 20; ++i) {
    file["added_tokens"].push_back({{"id", 261 + i}, {"content", std::string(60000, 'x' + i % 3)}});
    file["added_tokens"].back()["content"].get_ref<std::string&>() += std::to_string(i);
  }
  EXPECT_THAT(Load(file).error().message, HasSubstr("added_tokens have more than 1048576 bytes"));
}

TEST_F(ByteFallbackTest, StreamsCharactersOfBytesWhenTheyAreWhole) {
  const auto tokenizer = Load(good_);
  ASSERT_TRUE(tokenizer) << tokenizer.error().message;
  Detokenizer detokenizer(*tokenizer);
  const Ids ids = {257, 259, 0xc3, 260, 0xa9, '\n', 258, '\n', 0xc3, 'a', 'a', 258, 0xc3};
  std::vector<std::string> pieces;
  for (const int32_t id : ids) pieces.push_back(detokenizer.Append(id));
  // The decoder strips one space; 260 is skipped, and no run ends with it.
  EXPECT_EQ(pieces, (std::vector<std::string>{"", " a", "", "", "é", "\n", "a", "\n", "",
                                              "\ufffd\ufffd", "\ufffd", "a", ""}));
  EXPECT_EQ(detokenizer.Finish(), "\ufffd");
  // As Hugging Face has it: the damage takes the line end before it, too.
  EXPECT_EQ(tokenizer->Decode(ids), " aé\na\ufffd\ufffd\ufffd\ufffda\ufffd");
  EXPECT_EQ(detokenizer.Append(259), "a") << "another text, stripped as the first";
  EXPECT_EQ(detokenizer.Finish(), "");
}

TEST_F(ByteFallbackTest, NoTextHasFewerTokensThanItsBytesSay) {
  json file = good_;
  file["model"]["vocab"]["▁a▁a"] = 261;  // eight bytes, of four in the text
  file["model"]["merges"].push_back("▁a ▁a");
  file["added_tokens"] = json::array();
  const auto tokenizer = Load(file);
  ASSERT_TRUE(tokenizer) << tokenizer.error().message;
  EXPECT_EQ(tokenizer->TokensAtLeast(0), 0u);
  EXPECT_EQ(tokenizer->TokensAtLeast(800), 100u);
  EXPECT_EQ(tokenizer->TokensAtLeast(801), 101u);
  EXPECT_EQ(tokenizer->Encode("▁a▁a▁a▁a", false)->size(), 2u + 1);  // and what is prepended

  // "aaaa" becomes "a": a token stands for four times as much.
  const json four = {{"type", "Replace"}, {"pattern", {{"String", "aaaa"}}}, {"content", "a"}};
  json other = file;
  other["normalizer"]["normalizers"].push_back(four);
  EXPECT_EQ(Load(other)->TokensAtLeast(800), 25u);
  other["normalizer"]["normalizers"].push_back({{"type", "NFC"}});
  EXPECT_EQ(Load(other)->TokensAtLeast(800), 7u);
}

// Where any number of bytes may go into one token, or into none, bytes say nothing.
TEST_F(ByteFallbackTest, WhereTextMayVanishItsBytesSayNothing) {
  EXPECT_EQ(Load(good_)->TokensAtLeast(600), 100u);  // "<0x..>" are its longest
  json file = good_;
  file["added_tokens"][0]["lstrip"] = true;
  EXPECT_EQ(Load(file)->TokensAtLeast(600), 0u);
  file = good_;
  file["normalizer"]["normalizers"][1]["content"] = "";
  EXPECT_EQ(Load(file)->TokensAtLeast(600), 0u);
  file = good_;
  file["model"]["byte_fallback"] = false;
  EXPECT_EQ(Load(file)->TokensAtLeast(600), 100u);  // an unknown token for each character
  file["model"]["fuse_unk"] = true;
  EXPECT_EQ(Load(file)->TokensAtLeast(600), 0u);
  file["model"]["fuse_unk"] = false;
  file["model"]["unk_token"] = nullptr;
  EXPECT_EQ(Load(file)->TokensAtLeast(600), 0u);
  file = good_;
  file["pre_tokenizer"] = {
      {"type", "Split"}, {"pattern", {{"String", "b"}}}, {"behavior", "Removed"}};
  EXPECT_EQ(Load(file)->TokensAtLeast(600), 0u);
}

TEST(TokenizerTest, ManyThreadsShareOneTinyCache) {
  const auto tokenizer = Tokenizer::Load(kTokenizers + "gpt2", {.cache_words = 5});
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
  const auto tokenizer = Tokenizer::Load(kTokenizers + "gpt2");
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
