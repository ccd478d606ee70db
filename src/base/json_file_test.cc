#include "base/json_file.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "base/temp_dir_testing.h"

namespace kvcake {
namespace {

using testing::HasSubstr;

std::string MessageOf(std::string_view text, const JsonLimits& limits = {}) {
  const auto json = ParseJson(text, "f.json", limits);
  return json ? "" : json.error().message;
}

TEST(JsonFileTest, SaysWhereATextGoesWrong) {
  EXPECT_THAT(MessageOf(R"({"a": 1, "eps": NaN})"),
              testing::AllOf(HasSubstr("f.json"), HasSubstr("(at the field \"eps\")")));
  EXPECT_THAT(MessageOf(R"({"a": {"b": [1, 2}})", {.unique_names = true}),
              HasSubstr("(at the field \"b\")"));
  EXPECT_THAT(MessageOf("hello"), HasSubstr("not JSON"));
  EXPECT_LT(MessageOf('"' + std::string(1 << 20, 'x')).size(), 1000u);
  EXPECT_LT(MessageOf("{\"" + std::string(1 << 20, 'x') + "\": ?").size(), 1000u);
}

TEST(JsonFileTest, NamesTwiceAreSeenAtEveryDepth) {
  const JsonLimits limits{.unique_names = true};
  EXPECT_THAT(MessageOf(R"({"a": [{"b": 1, "c": 2, "b": 3}]})", limits),
              HasSubstr("\"b\" is named twice"));
  EXPECT_EQ(MessageOf(R"({"a": {"a": 1}, "b": {"a": 1}})", limits), "");
  EXPECT_EQ(MessageOf(R"({"a": 1, "a": 2})"), "");
}

// A parser whose time grows with the square of the text would take hours here.
TEST(JsonFileTest, ManyEntriesAndManyErrorsTakeTimeInProportion) {
  std::string text = "{";
  for (int i = 0; i < 100000; ++i) {
    text += fmt::format(R"("t{}":{{"dtype":"F32","shape":[0],"data_offsets":[0,0]}},)", i);
  }
  const JsonLimits limits{.unique_names = true};
  EXPECT_EQ(ParseJson(text + "\"end\":0}", "f.json", limits).value().size(), 100001u);
  EXPECT_THAT(MessageOf(text + "\"end\":NaN}", limits), HasSubstr("\"end\""));
  EXPECT_THAT(MessageOf(text + "\"end\":NaN}"), HasSubstr("\"end\""));
}

TEST(JsonFileTest, LimitsHold) {
  EXPECT_THAT(MessageOf("[[[1]]]", {.max_depth = 2}), HasSubstr("nested deeper than 2"));
  EXPECT_THAT(MessageOf("[1,2,3,4]", {.max_values = 3}), HasSubstr("more than 3 values"));
  EXPECT_THAT(MessageOf("[1,2,3,4]", {.max_bytes = 8}), HasSubstr("limit of 8"));
  EXPECT_EQ(MessageOf("[1,2,3,4]", {.max_bytes = 9, .max_values = 4, .max_depth = 1}), "");
}

// What stands in a string, behind whatever escapes, is no part of the text's structure.
TEST(JsonFileTest, WhatStandsInStringsIsNotCounted) {
  const JsonLimits limits{.max_values = 3, .max_depth = 1};
  for (const char* text : {R"(["[[{{,,,,"])", R"(["a \"[[[[,,,,"])", R"(["\\", "\"[,,,,"])",
                           R"({"\"[[,,,,": "}]"})"}) {
    EXPECT_EQ(MessageOf(text, limits), "") << text;
  }
  EXPECT_THAT(MessageOf(R"(["\\", [1]])", limits), HasSubstr("nested deeper"));
  EXPECT_THAT(MessageOf(R"(["\"", 1, 2, 3])", limits), HasSubstr("more than 3 values"));
}

TEST(JsonFileTest, LimitsHoldOfFilesToo) {
  const TempDir dir;
  const std::string path = dir.path() + "/f.json";
  std::ofstream(path) << R"({"a": [1], "a": 2})";
  const auto message = [&](const JsonLimits& limits) {
    const auto json = ReadJsonFile(path, limits);
    return json ? "" : json.error().message;
  };
  EXPECT_EQ(message({}), "");
  EXPECT_THAT(message({.max_bytes = 8}), HasSubstr(path + ": 18 bytes, more than the limit of 8"));
  EXPECT_THAT(message({.max_values = 2}), HasSubstr(path + ": more than 2 values"));
  EXPECT_THAT(message({.max_depth = 1}), HasSubstr(path + ": nested deeper than 1"));
  EXPECT_THAT(message({.unique_names = true}), HasSubstr(path + ": \"a\" is named twice"));
}

}  // namespace
}  // namespace kvcake
