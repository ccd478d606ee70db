// The pre_tokenizer of a tokenizer.json: cuts normalised text into the words that are encoded
// alone.
#pragma once

#include <deque>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/json_field.h"
#include "base/status.h"
#include "model/split_regex.h"

namespace kvcake {

// Thread-safe after Read.
class PreTokenizer {
 public:
  struct Word {
    std::string_view text;  // never empty
    bool first;             // the text that the user wrote begins with it
  };
  // Views into the text that was split, or into strings that live here.
  struct Words {
    std::vector<Word> words;
    std::deque<std::string> storage;

    std::string_view Keep(std::string text) { return storage.emplace_back(std::move(text)); }
  };

  // ByteLevel, Metaspace, Split, Punctuation, Digits and sequences of them; others are refused by
  // name, as is ByteLevel together with Metaspace.
  static Result<PreTokenizer> Read(const JsonField& field);

  // Words are bytes, not characters: they may begin or end within one.
  bool byte_level() const { return byte_level_; }
  // Parts of the text may be in no word.
  bool removes() const { return removes_; }
  // `first`: nothing stands before the valid, non-empty text.
  Result<Words> Split(std::string_view text, bool first) const;

 private:
  struct Metaspace {
    enum class Scheme { kFirst, kAlways, kNever };
    std::string replacement;
    Scheme scheme;
    bool split;  // before every replacement
  };
  struct PrefixSpace {};
  // To the alphabet of byte-level BPE, for steps that look at words spelled in it; and back.
  struct Spell {};
  struct Unspell {};
  using Step = std::variant<SplitRegex, Metaspace, PrefixSpace, Spell, Unspell>;

  Status Add(const JsonField& field);
  Status AddSplit(const JsonField& field);
  Status AddMetaspace(const JsonField& field);
  Status AddRegex(const JsonField& field, const SplitRegex::Rule& rule);

  static Status Apply(const SplitRegex& split, Words* words);
  static Status Apply(const Metaspace& metaspace, Words* words);
  static Status Apply(PrefixSpace, Words* words);
  static Status Apply(Spell, Words* words);
  static Status Apply(Unspell, Words* words);

  std::vector<Step> steps_;
  bool byte_level_ = false;
  bool removes_ = false;
  bool metaspace_ = false;
  bool spelled_ = false;
};

// The replacement and scheme that Metaspace has, as pre_tokenizer and as decoder.
struct MetaspaceFields {
  std::string replacement;     // one character
  std::string prepend_scheme;  // "first", "always" or "never"
};
Result<MetaspaceFields> ReadMetaspace(const JsonField& field);

}  // namespace kvcake
