// tokenizer.json, read and checked: what Tokenizer runs on.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "model/added_tokens.h"
#include "model/bpe.h"
#include "model/split_regex.h"
#include "model/tokenizer.h"

namespace kvcake {

struct TokenizerFile {
  struct Token {
    std::string bytes;
    bool exists = false;
    bool special = false;
  };

  std::vector<Token> tokens;     // by id
  StringMap<int32_t> ids;        // token bytes -> id, of the tokens that merges can make
  StringMap<int32_t> other_ids;  // token text -> id, of all others
  std::vector<Bpe::Merge> merges;
  bool whole_words = false;        // ignore_merges
  AddedTokens added;               // found in the text as it is
  bool normalize = false;          // to NFC
  AddedTokens added_normalized;    // found in the normalised text
  std::vector<SplitRegex> splits;  // applied one after the other
  bool add_prefix_space = false;   // to each piece that the splits before `prefix_split` left
  size_t prefix_split = 0;         // place in splits
  std::vector<int32_t> prefix;     // what the post processor puts before the text,
  std::vector<int32_t> suffix;     // and after
};

Result<TokenizerFile> ReadTokenizerFile(const std::string& path, const TokenizerOptions& options);

}  // namespace kvcake
