#include "model/added_tokens.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>

namespace kvcake {
namespace {

using testing::ElementsAre;
using testing::Pair;

std::vector<std::pair<std::string, int32_t>> Split(std::initializer_list<AddedToken> tokens,
                                                   std::string_view text) {
  AddedTokens added;
  for (const AddedToken& token : tokens) added.Add(token);
  std::vector<AddedTokens::Part> parts;
  added.Split(text, &parts);
  std::vector<std::pair<std::string, int32_t>> split;
  for (const AddedTokens::Part& part : parts) split.emplace_back(part.text, part.id);
  return split;
}

// Hugging Face gives a run of blank lines one such token, however long it is.
TEST(AddedTokensTest, WhiteSpaceThatOneTokenTookAlongIsNoOther) {
  const AddedToken lines{.id = 7, .content = "\n\n", .strip_left = true, .strip_right = true};
  EXPECT_THAT(Split({lines}, "a\n\n\n\n\n\nb"),
              ElementsAre(Pair("a", -1), Pair("\n\n\n\n\n\n", 7), Pair("b", -1)));
  EXPECT_THAT(Split({lines}, "a \n\n\n\n\nb\n\nc"),
              ElementsAre(Pair("a", -1), Pair(" \n\n\n\n\n", 7), Pair("b", -1), Pair("\n\n", 7),
                          Pair("c", -1)));
  const AddedToken start{.id = 8, .content = "<s>", .strip_right = true};
  const AddedToken spaces{.id = 9, .content = "  ", .strip_left = true};
  EXPECT_THAT(Split({start, spaces}, "<s>  a   b"),
              ElementsAre(Pair("<s>  ", 8), Pair("a", -1), Pair("  ", 9), Pair(" b", -1)));
  EXPECT_THAT(Split({start, spaces}, "<s>     a"), ElementsAre(Pair("<s>     ", 8), Pair("a", -1)));
}

}  // namespace
}  // namespace kvcake
