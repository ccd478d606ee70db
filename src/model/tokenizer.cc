#include "model/tokenizer.h"

#include <spdlog/spdlog.h>

#include <utility>

#include "base/utf8.h"
#include "model/byte_level.h"
#include "model/tokenizer_file.h"

namespace kvcake {

namespace {

// How much a text may grow by being normalised: " " becomes "▁"; a short one may get a prefix.
constexpr size_t kMaxGrowth = 3, kMaxGrowthBytes = 4096;

// U+FFFD for each of so many bytes.
std::string AsReplacements(size_t bytes) {
  std::string text;
  for (size_t i = 0; i < bytes; ++i) text += "\xef\xbf\xbd";
  return text;
}

}  // namespace

struct Tokenizer::State {
  State(TokenizerFile read, const TokenizerOptions& options)
      : options(options),
        file(std::move(read)),
        bpe(std::exchange(file.bpe, {}), options.cache_words) {}

  Status EncodeNormalized(std::string_view text, bool first, std::vector<int32_t>* tokens) const;

  const TokenizerOptions options;
  TokenizerFile file;  // but for what `bpe` has taken
  Bpe bpe;
};

Tokenizer::Tokenizer(std::unique_ptr<State> state) : state_(std::move(state)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Result<Tokenizer> Tokenizer::Load(const std::string& dir, const TokenizerOptions& options) {
  ASSIGN_OR_RETURN(TokenizerFile file, ReadTokenizerFile(dir, options));
  if (!file.disagreement.empty()) spdlog::warn("{}: {}", dir, file.disagreement);
  return Tokenizer(std::make_unique<State>(std::move(file), options));
}

// `first`: nothing stands before the text.
Status Tokenizer::State::EncodeNormalized(std::string_view text, bool first,
                                          std::vector<int32_t>* tokens) const {
  std::vector<AddedTokens::Part> parts;
  file.added_normalized.Split(text, &parts);
  for (const AddedTokens::Part& part : parts) {
    if (part.id >= 0) {
      tokens->push_back(part.id);
      continue;
    }
    const bool starts = first && part.text.data() == text.data();
    ASSIGN_OR_RETURN(const PreTokenizer::Words words, file.pre_tokenizer.Split(part.text, starts));
    for (const PreTokenizer::Word& word : words.words) bpe.Encode(word.text, tokens);
  }
  return {};
}

Result<std::vector<int32_t>> Tokenizer::Encode(std::string_view text, bool add_special) const {
  const TokenizerFile& file = state_->file;
  if (text.size() > state_->options.max_text_bytes) {
    return Fail(ErrorCode::kResourceExhausted, "a text of {} bytes is too long; the limit is {}",
                text.size(), state_->options.max_text_bytes);
  }
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
    const bool first = part.text.data() == text.data();
    std::string normalized;
    std::string_view rest = part.text;
    if (!file.normalizer.empty()) {
      ASSIGN_OR_RETURN(normalized, file.normalizer.Run(std::string(rest),
                                                       kMaxGrowth * rest.size() + kMaxGrowthBytes));
      rest = normalized;
    }
    RETURN_IF_ERROR(state_->EncodeNormalized(rest, first, &tokens));
  }
  if (add_special) tokens.insert(tokens.end(), file.suffix.begin(), file.suffix.end());
  return tokens;
}

size_t Tokenizer::TokensAtLeast(size_t text_bytes) const {
  const size_t most = state_->file.token_bytes_max;
  return most == 0 ? 0 : (text_bytes + most - 1) / most;
}

std::string Tokenizer::Decode(std::span<const int32_t> ids, bool skip_special) const {
  Detokenizer detokenizer(*this, skip_special);
  detokenizer.whole_runs_ = true;
  std::string text;
  for (const int32_t id : ids) text += detokenizer.Append(id);
  return text + detokenizer.Finish();
}

std::string Tokenizer::Bytes(int32_t id) const {
  return HasToken(id) ? state_->file.tokens[id].text : "";
}

int Tokenizer::vocab_size() const { return static_cast<int>(state_->file.tokens.size()); }

bool Tokenizer::HasToken(int32_t id) const {
  return id >= 0 && id < vocab_size() && state_->file.tokens[id].exists;
}

bool Tokenizer::IsSpecial(int32_t id) const {
  return HasToken(id) && state_->file.tokens[id].special;
}

std::optional<int32_t> Tokenizer::eos_token() const { return state_->file.eos; }

Detokenizer::Detokenizer(const Tokenizer& tokenizer, bool skip_special,
                         std::span<const int32_t> before)
    : tokenizer_(tokenizer),
      skip_special_(skip_special),
      strip_left_(tokenizer.state_->file.decoder.strip_start()) {
  for (const int32_t id : before) {
    if (!first_ && strip_left_ == 0) break;  // the start of the text is past
    Append(id);
  }
  Stripped(EndRun());
}

std::string Detokenizer::Append(int32_t id) {
  const TokenizerFile& file = tokenizer_.state_->file;
  if (!tokenizer_.HasToken(id) || (skip_special_ && tokenizer_.IsSpecial(id))) return "";
  const TokenizerFile::Token& token = file.tokens[id];
  const bool first = std::exchange(first_, false);
  if (file.decoder.byte_level()) {
    pending_ += token.text;
    const size_t whole = pending_.size() - IncompleteUtf8Suffix(pending_);
    std::string text = ReplaceInvalidUtf8(std::string_view(pending_).substr(0, whole));
    pending_.erase(0, whole);
    return text;
  }
  if (token.fallback_byte) return Stripped(AddToRun(token.text));
  std::string text = EndRun();
  const auto other = first ? file.first_texts.find(id) : file.first_texts.end();
  text += other == file.first_texts.end() ? token.text : other->second;
  return Stripped(std::move(text));
}

std::string Detokenizer::Finish() {
  const TokenDecoder& decoder = tokenizer_.state_->file.decoder;
  std::string text = decoder.byte_level() ? ReplaceInvalidUtf8(pending_) : Stripped(EndRun());
  pending_.clear();
  first_ = true;
  strip_left_ = decoder.strip_start();
  return text;
}

// Goes on with a run of byte tokens; returns what is certain now. Waits for the rest of a
// character, but not for the run's end: stop strings and streams want "\n" when it comes.
std::string Detokenizer::AddToRun(std::string_view byte) {
  pending_ += byte;
  if (whole_runs_) return "";
  if (!damaged_ && IncompleteUtf8Suffix(pending_) == pending_.size()) return "";
  damaged_ = damaged_ || !IsValidUtf8(pending_);
  std::string ready = std::exchange(pending_, {});
  return damaged_ ? AsReplacements(ready.size()) : ready;
}

// The rest of a run of byte tokens that has ended, as text.
std::string Detokenizer::EndRun() {
  damaged_ = false;
  std::string rest = std::exchange(pending_, {});
  return IsValidUtf8(rest) ? rest : AsReplacements(rest.size());
}

std::string Detokenizer::Stripped(std::string text) {
  const std::string& character = tokenizer_.state_->file.decoder.stripped();
  size_t at = 0;
  while (strip_left_ > 0 && at < text.size()) {
    if (text.compare(at, character.size(), character) == 0) {
      at += character.size();
      --strip_left_;
    } else {
      strip_left_ = 0;
    }
  }
  return text.substr(at);
}

}  // namespace kvcake
