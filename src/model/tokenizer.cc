#include "model/tokenizer.h"

#include <deque>
#include <utility>

#include "model/byte_level.h"
#include "model/nfc.h"
#include "model/tokenizer_file.h"
#include "model/utf8.h"

namespace kvcake {

struct Tokenizer::State {
  State(TokenizerFile read, size_t cache_words)
      : file(std::move(read)),
        bpe(std::move(file.ids), file.merges, file.whole_words, cache_words) {
    file.merges = {};
  }

  Status EncodePiece(std::string_view text, std::vector<int32_t>* tokens) const;

  TokenizerFile file;  // but for what `bpe` has taken
  Bpe bpe;
};

Tokenizer::Tokenizer(std::unique_ptr<State> state) : state_(std::move(state)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Result<Tokenizer> Tokenizer::Load(const std::string& dir, const TokenizerOptions& options) {
  ASSIGN_OR_RETURN(TokenizerFile file, ReadTokenizerFile(dir + "/tokenizer.json", options));
  return Tokenizer(std::make_unique<State>(std::move(file), options.cache_words));
}

// Text without added tokens.
Status Tokenizer::State::EncodePiece(std::string_view text, std::vector<int32_t>* tokens) const {
  std::vector<std::string_view> pieces = {text};
  std::deque<std::string> prefixed;  // deque: views into its strings stay
  for (size_t i = 0; i <= file.splits.size(); ++i) {
    if (file.add_prefix_space && i == file.prefix_split) {
      for (std::string_view& piece : pieces) {
        if (!piece.starts_with(' ')) piece = prefixed.emplace_back(std::string(" ").append(piece));
      }
    }
    if (i == file.splits.size()) break;
    std::vector<std::string_view> smaller;
    for (const std::string_view piece : pieces) {
      RETURN_IF_ERROR(file.splits[i].Split(piece, &smaller));
    }
    pieces = std::move(smaller);
  }
  for (const std::string_view piece : pieces) bpe.Encode(piece, tokens);
  return {};
}

Result<std::vector<int32_t>> Tokenizer::Encode(std::string_view text, bool add_special) const {
  const TokenizerFile& file = state_->file;
  std::string valid;
  if (!IsValidUtf8(text)) {
    valid = ReplaceInvalidUtf8(text);
    text = valid;
  }
  std::vector<int32_t> tokens;
  if (add_special) tokens = file.prefix;
  std::vector<AddedTokens::Part> parts;
  file.added.Split(text, &parts);
  for (const AddedTokens::Part& part : parts) {
    if (part.id >= 0) {
      tokens.push_back(part.id);
      continue;
    }
    std::string normalized;
    std::string_view rest = part.text;
    if (file.normalize) {
      normalized = Nfc(rest);
      rest = normalized;
    }
    std::vector<AddedTokens::Part> inner;
    file.added_normalized.Split(rest, &inner);
    for (const AddedTokens::Part& piece : inner) {
      if (piece.id >= 0) {
        tokens.push_back(piece.id);
      } else {
        RETURN_IF_ERROR(state_->EncodePiece(piece.text, &tokens));
      }
    }
  }
  if (add_special) tokens.insert(tokens.end(), file.suffix.begin(), file.suffix.end());
  return tokens;
}

std::string Tokenizer::Decode(std::span<const int32_t> ids, bool skip_special) const {
  std::string bytes;
  for (const int32_t id : ids) {
    if (!skip_special || !IsSpecial(id)) bytes += TokenBytes(id);
  }
  return IsValidUtf8(bytes) ? bytes : ReplaceInvalidUtf8(bytes);
}

int Tokenizer::vocab_size() const { return static_cast<int>(state_->file.tokens.size()); }

std::optional<int32_t> Tokenizer::TokenId(std::string_view token) const {
  const auto& others = state_->file.other_ids;
  if (const auto it = others.find(token); it != others.end()) return it->second;
  if (!IsValidUtf8(token)) return std::nullopt;
  const auto bytes = TextAsBytes(token);
  return bytes ? state_->bpe.Find(*bytes) : std::nullopt;
}

bool Tokenizer::IsSpecial(int32_t id) const {
  return id >= 0 && id < vocab_size() && state_->file.tokens[id].special;
}

std::string_view Tokenizer::TokenBytes(int32_t id) const {
  if (id < 0 || id >= vocab_size()) return {};
  return state_->file.tokens[id].bytes;
}

std::string Detokenizer::Append(int32_t id) {
  if (!skip_special_ || !tokenizer_.IsSpecial(id)) pending_ += tokenizer_.TokenBytes(id);
  const size_t whole = pending_.size() - IncompleteUtf8Suffix(pending_);
  std::string text = ReplaceInvalidUtf8(std::string_view(pending_).substr(0, whole));
  pending_.erase(0, whole);
  return text;
}

std::string Detokenizer::Finish() {
  std::string text = ReplaceInvalidUtf8(pending_);
  pending_.clear();
  return text;
}

}  // namespace kvcake
