// The normalizer of a tokenizer.json: what is done to text before it is cut into words.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "base/json_field.h"
#include "base/status.h"

namespace kvcake {

class Normalizer {
 public:
  // NFC, Prepend, Replace (of a string) and sequences of them; others are refused by name.
  static Result<Normalizer> Read(const JsonField& field);

  bool empty() const { return steps_.empty(); }
  // Takes and returns valid UTF-8. kResourceExhausted where it would grow beyond max_bytes.
  Result<std::string> Run(std::string text, size_t max_bytes) const;
  // A text of N bytes has at least N / ShrinkMax() when it has been normalised; 0: it may vanish.
  size_t ShrinkMax() const;

 private:
  struct Nfc {};
  struct Prepend {
    std::string text;
  };
  struct Replace {
    std::string from;
    std::string to;
  };

  Status Add(const JsonField& field);

  std::vector<std::variant<Nfc, Prepend, Replace>> steps_;
};

// Every occurrence of `from`, which is not empty, from the left. kResourceExhausted where the
// result would be larger than max_bytes.
Result<std::string> ReplaceAll(std::string text, std::string_view from, std::string_view to,
                               size_t max_bytes);

}  // namespace kvcake
