#include "jinja/lexer.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "base/source_dir_testing.h"

namespace kvcake::jinja {
namespace {

constexpr const char* kKindNames[] = {"text",         "block_begin", "block_end", "variable_begin",
                                      "variable_end", "name",        "string",    "integer",
                                      "float",        "operator"};

TEST(Lexer, MakesTheTokensThatJinja2Makes) {
  std::ifstream file(SourceDir() + "/src/jinja/testdata/lexer.json");
  const auto cases = nlohmann::json::parse(file);
  ASSERT_GT(cases.size(), 50u);
  for (const auto& entry : cases) {
    const auto source = entry["source"].get<std::string>();
    const auto tokens = Lex(source);
    nlohmann::json seen;
    if (tokens) {
      seen = nlohmann::json::array();
      for (const Token& token : *tokens) {
        seen.push_back({kKindNames[static_cast<int>(token.kind)], token.text, token.line});
      }
    }
    EXPECT_EQ(seen, entry["tokens"]) << source << (tokens ? "" : tokens.error().message);
  }
}

TEST(Lexer, AnErrorNamesItsLine) {
  const auto tokens = Lex("a\n\n{{ b ! }}");
  ASSERT_FALSE(tokens);
  EXPECT_EQ(tokens.error().message, "line 3: ! }} is not known in an expression");
}

// UTF-8 has no half of a pair, and nothing beyond the last character.
TEST(Lexer, WhatIsNoCharacterIsNoEscape) {
  for (const char* escape : {"\\ud800", "\\udfff", "\\U0000d800", "\\U00110000", "\\Uffffffff"}) {
    const auto tokens = Lex(std::string("{{ '") + escape + "' }}");
    ASSERT_FALSE(tokens) << escape;
    EXPECT_EQ(tokens.error().message.find("line 1: a string has an escape that is none"), 0u);
  }
  for (const char* escape : {"\\ud7ff", "\\ue000", "\\U0010ffff"}) {
    EXPECT_TRUE(Lex(std::string("{{ '") + escape + "' }}")) << escape;
  }
}

TEST(Lexer, NamesBeyondAsciiAreUnsupported) {
  const auto tokens = Lex("{{ \xc3\xa9 }}");
  ASSERT_FALSE(tokens);
  EXPECT_EQ(tokens.error().code, ErrorCode::kUnsupported);
}

}  // namespace
}  // namespace kvcake::jinja
