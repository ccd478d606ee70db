#include <gtest/gtest.h>

#include "base/source_dir_testing.h"
#include "model/tokenizer.h"

namespace kvcake {
namespace {

Tokenizer Load(const std::string& name) {
  return Tokenizer::Load(SourceDir() + "/tests/golden/tokenizers/" + name).value();
}

std::string Text(Detokenizer& detokenizer, const std::vector<int32_t>& ids) {
  std::string text;
  for (const int32_t id : ids) text += detokenizer.Append(id);
  return text + detokenizer.Finish();
}

TEST(DetokenizerTest, EachTextBeginsAnewWhereAnotherHasEnded) {
  for (const char* name : {"gpt2", "llama2", "metaspace", "gemma"}) {
    const Tokenizer tokenizer = Load(name);
    const std::vector<int32_t> ids = *tokenizer.Encode("The fox", /*add_special=*/false);
    Detokenizer detokenizer(tokenizer);
    for (int round = 0; round < 3; ++round) {
      EXPECT_EQ(Text(detokenizer, ids), tokenizer.Decode(ids)) << name << ", round " << round;
    }
  }
}

TEST(DetokenizerTest, HalfACharacterEndsWithItsText) {
  const Tokenizer tokenizer = Load("gpt2");
  const std::vector<int32_t> whole = *tokenizer.Encode("\u0123", /*add_special=*/false);
  ASSERT_EQ(whole.size(), 2u) << "a token for each byte";
  Detokenizer detokenizer(tokenizer);
  EXPECT_EQ(Text(detokenizer, {whole[0]}), "\ufffd");
  EXPECT_EQ(Text(detokenizer, *tokenizer.Encode("a", false)), "a");
  EXPECT_EQ(Text(detokenizer, whole), "\u0123");
}

TEST(DetokenizerTest, IdsBehindTheLastTokenAreNone) {
  const Tokenizer tokenizer = Load("gpt2");
  const int32_t end = tokenizer.vocab_size();
  EXPECT_TRUE(tokenizer.HasToken(end - 1));
  EXPECT_FALSE(tokenizer.HasToken(end));
  EXPECT_EQ(tokenizer.Bytes(end), "");
  EXPECT_EQ(tokenizer.Decode(std::vector<int32_t>{end}), "");
}

}  // namespace
}  // namespace kvcake
