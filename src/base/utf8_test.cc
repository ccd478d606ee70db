#include "base/utf8.h"

#include <gtest/gtest.h>

#include <random>

namespace kvcake {
namespace {

TEST(Utf8Test, ReplacesMaximalParts) {
  const std::string bad = "\xef\xbf\xbd";
  EXPECT_EQ(ReplaceInvalidUtf8("a\u00e9\u20ac\U0001f600"), "a\u00e9\u20ac\U0001f600");
  EXPECT_EQ(ReplaceInvalidUtf8("\x80"), bad);
  EXPECT_EQ(ReplaceInvalidUtf8("\xff\xfe"), bad + bad);
  EXPECT_EQ(ReplaceInvalidUtf8("\xc0\xaf"), bad + bad);            // overlong
  EXPECT_EQ(ReplaceInvalidUtf8("\xed\xa0\x80"), bad + bad + bad);  // surrogate
  EXPECT_EQ(ReplaceInvalidUtf8("\xf0\x9f\x98x"), bad + "x");       // cut short
  EXPECT_EQ(ReplaceInvalidUtf8("\xe2\x82"), bad);
  EXPECT_EQ(ReplaceInvalidUtf8("\xf4\x90\x80\x80"), bad + bad + bad + bad);
  EXPECT_EQ(ReplaceInvalidUtf8("\xe2\xe2\x82\xac"), bad + "\u20ac");
}

TEST(Utf8Test, EveryCharacterIsWrittenAndReadAsItIs) {
  constexpr char32_t kSurrogates = 0xd800, kSurrogatesEnd = 0xe000, kEnd = 0x110000;
  std::string before;  // bytes of characters are in the order of their codes
  for (char32_t code = 1; code < kEnd; code = code + 1 == kSurrogates ? kSurrogatesEnd : code + 1) {
    std::string text;
    AppendUtf8(code, &text);
    ASSERT_TRUE(IsValidUtf8(text) && before < text) << std::hex << static_cast<uint32_t>(code);
    size_t size = 0;
    ASSERT_EQ(DecodeUtf8(text + "x", &size), code);
    ASSERT_EQ(size, text.size()) << std::hex << static_cast<uint32_t>(code);
    before = text;
  }
  EXPECT_EQ(before, "\U0010ffff");
}

TEST(Utf8Test, FindsIncompleteEnds) {
  EXPECT_EQ(IncompleteUtf8Suffix(""), 0u);
  EXPECT_EQ(IncompleteUtf8Suffix("a"), 0u);
  EXPECT_EQ(IncompleteUtf8Suffix("\u20ac"), 0u);
  EXPECT_EQ(IncompleteUtf8Suffix("a\xe2"), 1u);
  EXPECT_EQ(IncompleteUtf8Suffix("a\xe2\x82"), 2u);
  EXPECT_EQ(IncompleteUtf8Suffix("\xf0\x9f\x98"), 3u);
  EXPECT_EQ(IncompleteUtf8Suffix("\xe0\x80"), 0u);  // no character begins so
  EXPECT_EQ(IncompleteUtf8Suffix("\xff"), 0u);
}

TEST(Utf8Test, ReplacingIsValidAndSplitsAnywhere) {
  std::mt19937 random(5);
  const std::string_view bytes("\x00\x41\x80\xbf\xc2\xc3\xe0\xa0\xed\x9f\xf0\x90\xf4\x8f\xff", 15);
  for (int i = 0; i < 20000; ++i) {
    std::string text;
    for (size_t n = random() % 10; n > 0; --n) text += bytes[random() % bytes.size()];
    const std::string whole = ReplaceInvalidUtf8(text);
    EXPECT_TRUE(IsValidUtf8(whole));
    EXPECT_EQ(IsValidUtf8(text), whole == text);
    std::string pending, pieces;  // as Detokenizer does
    for (const char c : text) {
      pending += c;
      const size_t ready = pending.size() - IncompleteUtf8Suffix(pending);
      pieces += ReplaceInvalidUtf8(pending.substr(0, ready));
      pending.erase(0, ready);
      EXPECT_LE(pending.size(), 3u);
    }
    EXPECT_EQ(pieces + ReplaceInvalidUtf8(pending), whole);
  }
}

TEST(Utf8Test, WhatIsClippedEndsWithAWholeCharacter) {
  EXPECT_EQ(Clip("abc", 3), "abc");
  EXPECT_EQ(Clip("abcd", 3), "abc...");
  EXPECT_EQ(Clip("a\u20acb", 4), "a\u20ac...");
  for (const size_t bytes : {1, 2, 3}) EXPECT_EQ(Clip("a\u20acb", bytes), "a...") << bytes;
  EXPECT_EQ(Clip("\u20ac\u20ac", 2), "...");
}

TEST(PrintableTest, ControlsAndBytesThatAreNoTextAreEscaped) {
  EXPECT_EQ(Printable("plain \\ \"text\" é 👍 \u00a0"), "plain \\ \"text\" é 👍 \u00a0");
  EXPECT_EQ(Printable(std::string_view("a\0\t\n\r\x1b[2J\x7f", 10)),
            "a\\x00\\x09\\x0a\\x0d\\x1b[2J\\x7f");
  EXPECT_EQ(Printable("\xc2\x9b"
                      "2J\xc2\x80\xc2\x9f\xc2\xa0"),
            "\\x9b2J\\x80\\x9f\xc2\xa0");
  EXPECT_EQ(Printable("\x9b"
                      "2J\xff\xe2\x82"),
            "\\x9b2J\\xff\\xe2\\x82");
  EXPECT_EQ(Printable(""), "");
}

}  // namespace
}  // namespace kvcake
