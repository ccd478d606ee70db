// Any template text: tokens or an error, every token on a line that the text has.
#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "base/utf8.h"
#include "jinja/lexer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text =
      kvcake::ReplaceInvalidUtf8(std::string_view(reinterpret_cast<const char*>(data), size));
  const auto tokens = kvcake::jinja::Lex(text);
  if (!tokens) return 0;
  int line = 1;
  for (const auto& token : *tokens) {
    CHECK(token.line >= line);
    line = token.line;
  }
  const auto ends =
      std::count_if(text.begin(), text.end(), [](char c) { return c == '\n' || c == '\r'; });
  CHECK(line <= ends + 1);
  return 0;
}
