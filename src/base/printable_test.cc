#include "base/printable.h"

#include <gtest/gtest.h>

namespace kvcake {
namespace {

TEST(PrintableAsciiTest, WhatIsNoneIsAQuestionMark) {
  EXPECT_EQ(PrintableAscii(" plain ~"), " plain ~");
  EXPECT_EQ(PrintableAscii(std::string_view("a\0\n\x1b[2J\x7f\x80\xff", 10)), "a???[2J???");
}

}  // namespace
}  // namespace kvcake
