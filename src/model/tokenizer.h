// tokenizer.json of a model directory: byte-level BPE, exactly as Hugging Face tokenizers runs it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace kvcake {

struct TokenizerOptions {
  uint64_t max_file_bytes = 64ull << 20;
  int32_t max_token_id = (1 << 20) - 1;
  size_t cache_words = 1 << 16;  // words whose tokens are remembered, twice
};

// Immutable after Load; every method may be called from any thread.
class Tokenizer {
 public:
  // Reads DIR/tokenizer.json. What kvcake cannot do exactly is refused by name (kUnsupported); a
  // file that contradicts itself is kInvalidArgument and names the entry.
  static Result<Tokenizer> Load(const std::string& dir, const TokenizerOptions& options = {});
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // Added tokens written out in the text become their ids. With add_special, what the file's post
  // processor adds (usually a BOS token) is added. Bytes that are no UTF-8 count as U+FFFD. Fails
  // only when the split pattern gives up on the text.
  Result<std::vector<int32_t>> Encode(std::string_view text, bool add_special = true) const;
  // Always valid UTF-8: bytes that are none become U+FFFD. Ids without an entry are left out.
  std::string Decode(std::span<const int32_t> ids, bool skip_special = true) const;

  // Largest id + 1; a model's vocabulary may be larger.
  int vocab_size() const;
  // The id of a token as tokenizer.json spells it ("<|eot_id|>", "Ġthe").
  std::optional<int32_t> TokenId(std::string_view token) const;
  bool IsSpecial(int32_t id) const;
  // The bytes that the token stands for; empty when there is no such id.
  std::string_view TokenBytes(int32_t id) const;

 private:
  struct State;
  explicit Tokenizer(std::unique_ptr<State> state);

  std::unique_ptr<State> state_;
};

// Text from tokens as they come: Append returns whole characters only, and all that was returned,
// with Finish's, is what Decode makes of all the ids. The tokenizer outlives it. One thread.
class Detokenizer {
 public:
  explicit Detokenizer(const Tokenizer& tokenizer, bool skip_special = true)
      : tokenizer_(tokenizer), skip_special_(skip_special) {}

  std::string Append(int32_t id);
  // The bytes still held back, as U+FFFD where they are no character; ready for another text.
  std::string Finish();

 private:
  const Tokenizer& tokenizer_;
  const bool skip_special_;
  std::string pending_;  // the start of a character, at most 3 bytes between calls
};

}  // namespace kvcake
