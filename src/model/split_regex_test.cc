#include "model/split_regex.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvcake {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::string_view> Split(const std::string& pattern, std::string_view text) {
  const auto split = SplitRegex::Compile({.pattern = pattern}).value();
  std::vector<std::string_view> pieces;
  EXPECT_TRUE(split.Split(text, &pieces));
  return pieces;
}

// Oniguruma has a class match what differs from its characters by case, whatever put them there;
// PCRE2 leaves out those of a property.
TEST(SplitRegexTest, PropertiesThatCaseLeavesAreRefusedInClassesWhereItDoesNotCount) {
  for (const char* pattern :
       {R"((?i)[\p{Lu}]+)", R"((?i)a[^\p{Ll}])", R"((?i:[\p{Lt}1]))", R"((?i)(?:a(b)[\p{Greek}]))",
        R"((?i:a|(?=[\p{M}])))", R"((?i)[\P{Mn}])"}) {
    const auto split = SplitRegex::Compile({.pattern = pattern});
    ASSERT_FALSE(split) << pattern;
    EXPECT_EQ(split.error().code, ErrorCode::kUnsupported);
    EXPECT_THAT(split.error().message, HasSubstr("in a class where case does not count"));
  }
  EXPECT_THAT(Split(R"((?i)\p{Lu}+)", "aB1"), ElementsAre("a", "B", "1"));
  EXPECT_THAT(Split(R"((?i)[\p{L}\p{N}]+)", "aB1 "), ElementsAre("aB1", " "));
  EXPECT_THAT(Split(R"([\p{Lu}\)(]+(?i:b)|[\p{Lu}]+)", "aB)b1"), ElementsAre("a", "B)b", "1"));
  EXPECT_THAT(Split(R"((?i:a(b))[\p{Lu}]+)", "aBc abC"), ElementsAre("aBc ", "abC"));
}

// A text that would be cut elsewhere than it is elsewhere is no text to go on with.
TEST(SplitRegexTest, ATextThatThePatternGivesUpOnIsRefused) {
  const auto split = SplitRegex::Compile({.pattern = "(?:a+)+[bc]"});
  ASSERT_TRUE(split) << split.error().message;
  std::vector<std::string_view> pieces;
  EXPECT_TRUE(split->Split("aab", &pieces));
  const Status status = split->Split(std::string(60, 'a'), &pieces);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kResourceExhausted);
  EXPECT_THAT(status.error().message, HasSubstr("gave up on a text of 60 bytes"));
}

}  // namespace
}  // namespace kvcake
