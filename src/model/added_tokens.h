// Tokens that are recognised in a text before anything else looks at it: "<|eot_id|>" and the like.
#pragma once

#include <bitset>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace kvcake {

struct AddedToken {
  int32_t id = 0;
  std::string content = {};
  bool strip_left = false;  // takes the white space before it along
  bool strip_right = false;
  bool single_word = false;  // not where a letter, digit or the like touches it
};

class AddedTokens {
 public:
  struct Part {
    std::string_view text;
    int32_t id;  // -1: text between tokens
  };

  void Add(AddedToken token);
  // Cuts valid UTF-8 at the tokens: the leftmost first, of those the longest. (Where a token that
  // itself contains white space follows one that strips it, parts overlap, as in Hugging Face,
  // unless it strips what is before it.)
  void Split(std::string_view text, std::vector<Part>* parts) const;

 private:
  // The longest token that the text begins with, or nullptr.
  const AddedToken* Match(std::string_view text) const;

  std::vector<AddedToken> tokens_;
  // A trie: nodes are numbered, 0 is the root.
  std::unordered_map<uint64_t, uint32_t> edges_;  // node << 8 | byte -> node
  std::unordered_map<uint32_t, size_t> ends_;     // node -> place in tokens_
  std::bitset<256> first_bytes_;
  uint32_t nodes_ = 1;
};

}  // namespace kvcake
