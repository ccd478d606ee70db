// The patterns by which a tokenizer cuts text into words: written for Oniguruma (which Hugging Face
// uses), run by PCRE2. What the two understand differently is rewritten, or refused by name.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace kvcake {

// Thread-safe after Compile.
class SplitRegex {
 public:
  // What becomes of the parts of a text that match, and of those between.
  enum class Behavior { kIsolated, kRemoved, kMergedWithPrevious, kMergedWithNext, kContiguous };
  struct Rule {
    std::string pattern;
    bool literal = false;  // the pattern is plain text
    Behavior behavior = Behavior::kIsolated;
    bool invert = false;  // the parts between are the matches
  };

  static Result<SplitRegex> Compile(const Rule& rule);
  SplitRegex(SplitRegex&&) noexcept;
  SplitRegex& operator=(SplitRegex&&) noexcept;
  ~SplitRegex();

  // Appends the pieces of valid UTF-8, none of them empty. kResourceExhausted when the pattern
  // takes too many steps on the text.
  Status Split(std::string_view text, std::vector<std::string_view>* pieces) const;

 private:
  struct Compiled;
  explicit SplitRegex(std::unique_ptr<Compiled> compiled);

  std::unique_ptr<Compiled> compiled_;
};

// What Unicode's regular expressions call a word character: letters, marks, decimal digits and
// connectors.
bool IsWordCharacter(char32_t code);

// The PCRE2 pattern (UTF, UCP, multi-line) that means what the pattern means to Oniguruma.
Result<std::string> TranslatePattern(std::string_view pattern);

}  // namespace kvcake
