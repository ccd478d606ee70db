// What tokenizer_config.json, and older files beside it, say of a tokenizer's tokens.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/json_field.h"
#include "base/status.h"
#include "model/added_tokens.h"

namespace kvcake {

// An added token as files list it.
struct ListedToken {
  // All but the id, which not every file gives: of an object with "content", "special" and so on.
  static Result<ListedToken> Read(const JsonField& entry);

  AddedToken token = {.id = -1};
  bool special = false;
  bool normalized = true;  // found in the normalised text
};

struct TokenizerConfig {
  struct Token {
    ListedToken listed;
    std::string source;      // the file and the field
    bool has_flags = false;  // added_tokens_decoder has it: its flags go before tokenizer.json's
    bool has_role = false;   // it is special by its role, whatever else is said
    bool of_class = false;   // no file has it: it is one where the vocabulary has it
  };

  // Reads DIR/tokenizer_config.json; where it lists no tokens by their ids, as older ones do not,
  // special_tokens_map.json and added_tokens.json count as well. Files may be missing.
  static Result<TokenizerConfig> Read(const std::string& dir);

  // In the order in which transformers adds those that tokenizer.json does not list. Each once.
  std::vector<Token> tokens;
  std::string eos;  // the content of the one that ends an answer; empty: none
  // By their roles ("bos_token", "image_token"), as templates know them: those that transformers
  // has for the tokenizer's class included, where the files say nothing.
  std::map<std::string, std::string> names = {};
  std::vector<std::string> extra = {};  // special ones without a role
  // Whether transformers 4 puts a BOS token before prompts and an EOS token behind them, whatever
  // tokenizer.json says, as it does for LlamaTokenizer; empty: as tokenizer.json says.
  std::optional<bool> adds_bos = {}, adds_eos = {};
};

}  // namespace kvcake
