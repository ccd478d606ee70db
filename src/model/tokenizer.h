// tokenizer.json of a model directory: byte-level and SentencePiece-style BPE, exactly as Hugging
// Face tokenizers runs it.
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
  size_t cache_words = 1 << 16;          // words whose tokens are remembered, twice
  size_t max_text_bytes = 256ull << 20;  // of a text to encode
};

// Immutable after Load; every method may be called from any thread.
class Tokenizer {
 public:
  // Reads DIR/tokenizer.json, and what tokenizer_config.json names beside it. What kvcake cannot do
  // exactly is refused by name (kUnsupported); files that contradict themselves or each other are
  // kInvalidArgument, which names the entry.
  static Result<Tokenizer> Load(const std::string& dir, const TokenizerOptions& options = {});
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // Added tokens written out in the text become their ids. With add_special, what the file's post
  // processor adds (usually a BOS token) is added. Bytes that are no UTF-8 count as U+FFFD.
  // kResourceExhausted when the text is too long or the split pattern gives up on it.
  Result<std::vector<int32_t>> Encode(std::string_view text, bool add_special = true) const;
  // No text of so many bytes has fewer tokens, those of add_special apart. Costs nothing: texts
  // that are too long are refused by it.
  size_t TokensAtLeast(size_t text_bytes) const;
  // Always valid UTF-8: bytes that are none become U+FFFD. Ids without an entry are left out.
  std::string Decode(std::span<const int32_t> ids, bool skip_special = true) const;

  // What the token stands for within a text: a part of a character where it is one. Ids without an
  // entry: nothing.
  std::string Bytes(int32_t id) const;

  // Largest id + 1; a model's vocabulary may be larger.
  int vocab_size() const;
  bool HasToken(int32_t id) const;
  bool IsSpecial(int32_t id) const;
  // The token that ends an answer, where the files beside tokenizer.json name one.
  std::optional<int32_t> eos_token() const;

 private:
  friend class Detokenizer;
  struct State;
  explicit Tokenizer(std::unique_ptr<State> state);

  std::unique_ptr<State> state_;
};

// Text from tokens as they come: Append returns whole characters only, each with the token that
// completes it, and all that was returned, with Finish's, is what Decode makes of all the ids; but
// where a run of byte tokens is no UTF-8, which Decode makes U+FFFD of, one for each byte, its
// valid start has been returned by then, and stays. The tokenizer outlives it. One thread.
class Detokenizer {
 public:
  // The text goes on behind that of `before`, a prompt's ids: some tokenizers leave out a space at
  // the start of a text only where nothing stands before it.
  explicit Detokenizer(const Tokenizer& tokenizer, bool skip_special = true,
                       std::span<const int32_t> before = {});

  std::string Append(int32_t id);
  // What is still held back, with U+FFFD where it is no character; ready for another text.
  std::string Finish();

 private:
  friend class Tokenizer;
  std::string AddToRun(std::string_view byte);
  std::string EndRun();
  std::string Stripped(std::string text);

  const Tokenizer& tokenizer_;
  const bool skip_special_;
  bool whole_runs_ = false;  // Decode's: what a run's first byte means depends on its last
  std::string pending_;      // the start of a character, at most 3 bytes; with whole_runs_, a run's
  bool damaged_ = false;     // the run of byte tokens that goes on is no UTF-8
  bool first_ = true;        // no token has come yet
  size_t strip_left_ = 0;    // characters that the decoder may yet take from the start
};

}  // namespace kvcake
