// A Jinja template as tokens, with whitespace control done: as jinja2's lexer makes them with
// trim_blocks and lstrip_blocks, which is how transformers sets it up.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace kvcake::jinja {

enum class TokenKind {
  kText,
  kBlockBegin,
  kBlockEnd,
  kVariableBegin,
  kVariableEnd,
  kName,
  kString,   // escapes undone
  kInteger,  // underscores left out; may have a prefix 0x, 0o or 0b
  kFloat,    // underscores left out
  kOperator,
};

struct Token {
  TokenKind kind;
  std::string text;
  int line;  // where it begins, from 1
};

// Fails with kInvalidArgument, naming the line, on what jinja2 would not take either. Names are
// ASCII: others are kUnsupported. Takes valid UTF-8.
Result<std::vector<Token>> Lex(std::string_view text);

}  // namespace kvcake::jinja
