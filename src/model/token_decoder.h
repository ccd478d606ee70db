// The decoder of a tokenizer.json: what the tokens of an answer mean as text.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/json_field.h"
#include "base/status.h"

namespace kvcake {

// Three steps, as all supported decoders are: each token by itself, then runs of byte tokens, then
// the start of the whole text.
class TokenDecoder {
 public:
  // ByteLevel, Metaspace, or a sequence of: Replace and Strip of each token, ByteFallback, Fuse,
  // Strip of the start. Others are refused by name.
  static Result<TokenDecoder> Read(const JsonField& field);

  bool byte_level() const { return byte_level_; }
  // What a token means by itself: bytes where byte_level, else valid UTF-8. kResourceExhausted
  // where it would grow beyond max_bytes.
  Result<std::string> Text(const std::string& spelling, size_t max_bytes) const;
  // The same where the token is the first of a text and means something else there.
  std::optional<std::string> FirstText(const std::string& spelling) const;
  // The byte that Text stands for, if it is one of byte fallback ("<0x0A>"). A run of them that is
  // not valid UTF-8 means U+FFFD for each.
  std::optional<char> FallbackByte(std::string_view text) const;
  // At most so many of this character are taken from the start of the text.
  const std::string& stripped() const { return stripped_; }
  size_t strip_start() const { return strip_start_; }

 private:
  struct Replace {
    std::string from;
    std::string to;
  };
  struct Strip {
    std::string character;
    size_t start;
    size_t stop;
  };
  enum class Stage { kTokens, kRuns, kWhole, kDone };

  Status Add(const JsonField& field);
  Status AddReplace(const JsonField& field);
  Status AddStrip(const JsonField& field);
  static std::string Apply(const Strip& strip, std::string text);

  Stage stage_ = Stage::kTokens;  // while reading
  bool byte_level_ = false;
  std::vector<std::variant<Replace, Strip>> steps_;  // of each token
  std::string metaspace_;  // the character that means a space, or, in the first token, nothing
  bool byte_fallback_ = false;
  std::string stripped_;
  size_t strip_start_ = 0;
};

}  // namespace kvcake
