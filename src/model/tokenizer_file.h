// tokenizer.json, read and checked: what Tokenizer runs on.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "model/added_tokens.h"
#include "model/bpe.h"
#include "model/normalizer.h"
#include "model/pre_tokenizer.h"
#include "model/token_decoder.h"
#include "model/tokenizer.h"

namespace kvcake {

struct TokenizerFile {
  struct Token {
    std::string text;  // TokenDecoder::Text
    bool exists = false;
    bool special = false;
    bool fallback_byte = false;  // `text` is a single byte of a run
  };

  BpeRules bpe;
  std::vector<Token> tokens;                             // by id
  std::unordered_map<int32_t, std::string> first_texts;  // TokenDecoder::FirstText
  AddedTokens added;                                     // found in the text as it is
  Normalizer normalizer;
  AddedTokens added_normalized;  // found in the normalised text
  PreTokenizer pre_tokenizer;
  TokenDecoder decoder;
  std::vector<int32_t> prefix;  // what the post processor puts before the text,
  std::vector<int32_t> suffix;  // and after
  size_t token_bytes_max = 0;   // most bytes of a text that one token stands for; 0: no bound
  std::optional<int32_t> eos;   // what ends an answer
  std::string disagreement;     // of tokenizer_config.json about prefix or suffix; empty: none
};

// DIR/tokenizer.json, with the tokens that only the files beside it name.
Result<TokenizerFile> ReadTokenizerFile(const std::string& dir, const TokenizerOptions& options);

}  // namespace kvcake
