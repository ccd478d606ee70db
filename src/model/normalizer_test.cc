#include "model/normalizer.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace kvcake {
namespace {

using nlohmann::json;

json Puts(const std::string& text) { return {{"type", "Prepend"}, {"prepend", text}}; }

TEST(NormalizerTest, WhatIsPutBeforeATextIsBounded) {
  const json steps = {{"type", "Sequence"},
                      {"normalizers", {Puts("ab"), Puts(std::string(50, 'x'))}}};
  const auto normalizer = Normalizer::Read(JsonField(steps, "test"));
  ASSERT_TRUE(normalizer) << normalizer.error().message;
  EXPECT_EQ(normalizer->Run("c", 53), std::string(50, 'x') + "abc");
  EXPECT_EQ(normalizer->Run("c", 52).error().code, ErrorCode::kResourceExhausted);
  EXPECT_EQ(normalizer->Run("c", 2).error().code, ErrorCode::kResourceExhausted);
  EXPECT_EQ(normalizer->Run("", 0), "");
}

TEST(NormalizerTest, WhatReplacingLeavesIsBounded) {
  const std::string text = "a" + std::string(50, 'b');
  EXPECT_EQ(ReplaceAll(text, "a", "", 50), std::string(50, 'b'));
  EXPECT_EQ(ReplaceAll(text, "a", "", 49).error().code, ErrorCode::kResourceExhausted);
  EXPECT_EQ(ReplaceAll(text, "a", "xy", 52), "xy" + std::string(50, 'b'));
  EXPECT_EQ(ReplaceAll(text, "a", "xy", 51).error().code, ErrorCode::kResourceExhausted);
}

}  // namespace
}  // namespace kvcake
