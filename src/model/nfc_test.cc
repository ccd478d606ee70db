#include "model/nfc.h"

#include <gtest/gtest.h>

namespace kvcake {
namespace {

TEST(NfcTest, ComposesAndOrders) {
  EXPECT_EQ(Nfc(""), "");
  EXPECT_EQ(Nfc("plain text \xc3\xa9"), "plain text \xc3\xa9");
  EXPECT_EQ(Nfc("e\u0301"), "\u00e9");
  EXPECT_EQ(Nfc("\u212b"), "\u00c5");                           // a single character for another
  EXPECT_EQ(Nfc("a\u0323\u0302"), "\u1ead");                    // two marks, one after the other
  EXPECT_EQ(Nfc("a\u0302\u0323"), "\u1ead");                    // and in the wrong order
  EXPECT_EQ(Nfc("a\u0327\u0328\u0301"), "\u00e1\u0327\u0328");  // one blocks the other
  EXPECT_EQ(Nfc("\u0915\u093c"), "\u0915\u093c");               // never composed
  EXPECT_EQ(Nfc("\u0958"), "\u0915\u093c");
  EXPECT_EQ(Nfc("\u1112\u1161\u11ab"), "\ud55c");  // Hangul
  EXPECT_EQ(Nfc("\ud558\u11ab"), "\ud55c");
  EXPECT_EQ(Nfc("\u1112\u1161\u11a7"), "\ud558\u11a7");
  EXPECT_EQ(Nfc("\u0301e\u0301\u0301"), "\u0301\u00e9\u0301");
  EXPECT_EQ(Nfc("\u0b47\u0300\u0b3e"), "\u0b47\u0300\u0b3e");  // blocked by the mark between
  EXPECT_EQ(Nfc("\U0001d15e"), "\U0001d157\U0001d165");
}

TEST(NfcTest, IsIdempotent) {
  const std::string pieces[] = {"a",      "\u0301", "\u0323", "\u1100", "\u1161",    "\u11a8",
                                "\u0958", "\uac00", "\u00e9", "\u0b47", "\u0b3e",    "\u3099",
                                "\u304b", " ",      "\u0338", "=",      "\U0001d15e"};
  uint32_t random = 1;
  for (int i = 0; i < 5000; ++i) {
    std::string text;
    for (int n = 0; n < 12; ++n) {
      random = random * 1664525 + 1013904223;
      text += pieces[(random >> 16) % std::size(pieces)];
    }
    const std::string once = Nfc(text);
    EXPECT_EQ(Nfc(once), once);
    EXPECT_LE(once.size(), text.size() * 3);
  }
}

}  // namespace
}  // namespace kvcake
