// Real text for prompts, cut into pieces that differ from each other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace kvcake::bench {

// A stretch of a prompt. The same label and length are the same text, and fewer tokens of a label
// are where more of them begin; another label is another text from its first words on.
struct TextPiece {
  std::string label;
  int tokens = 0;
};

class TextSource {
 public:
  // A file, or the *.txt of a directory in the order of their names.
  static Result<TextSource> Read(const std::string& path);
  // kInvalidArgument: too few words.
  static Result<TextSource> Of(std::string text);

  // The piece's label, and passages from places that the label and the seed decide, at about so
  // many characters a token.
  std::string Cut(const TextPiece& piece, double characters_per_token, uint64_t seed) const;

 private:
  TextSource() = default;
  size_t EndOfWord(size_t word) const;  // in text_

  std::string text_;
  std::vector<size_t> words_;  // where they begin
};

}  // namespace kvcake::bench
