#include "io/number_lines.h"

#include <gtest/gtest.h>

namespace kvcake {
namespace {

TEST(NumberLinesTest, LinesAreNumbersOrPassedOver) {
  const auto table =
      ParseNumberLines("# seconds, speed\n\n 0 1.5 \r\n\t# later\n1e1\t-2\n", "a, b");
  ASSERT_TRUE(table) << table.error().message;
  ASSERT_EQ(table->size(), 2u);
  EXPECT_EQ((*table)[0].number, 3);
  EXPECT_EQ((*table)[0].values, (std::vector<double>{0, 1.5}));
  EXPECT_EQ((*table)[1].number, 5);
  EXPECT_EQ((*table)[1].values, (std::vector<double>{10, -2}));
}

TEST(NumberLinesTest, WhatIsNotNamesItsLineAndWhatItShouldBe) {
  for (const char* text : {"1 2\n3\n", "1 2\n3 4 5\n", "1 2\nx 4\n", "1 2\n3 4x\n", "1 2\n3,4\n"}) {
    const auto table = ParseNumberLines(text, "seconds, speed");
    ASSERT_FALSE(table) << text;
    EXPECT_EQ(table.error().code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(table.error().message, "line 2 is not 2 numbers: seconds, speed");
  }
  EXPECT_FALSE(ParseNumberLines("", "a"));
  EXPECT_FALSE(ParseNumberLines("# nothing\n", "a"));
}

}  // namespace
}  // namespace kvcake
