#include "model/added_tokens.h"

#include <algorithm>
#include <utility>

#include "base/utf8.h"
#include "model/split_regex.h"

namespace kvcake {

namespace {

bool IsWhiteSpace(char32_t c) {
  return (c >= 0x09 && c <= 0x0d) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f ||
         c == 0x3000;
}

size_t LeadingSpace(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    size_t size = 0;
    if (!IsWhiteSpace(DecodeUtf8(text.substr(at), &size))) break;
    at += size;
  }
  return at;
}

// The last character of non-empty text.
char32_t LastCharacter(std::string_view text, size_t* size) {
  size_t at = text.size() - 1;
  while (at > 0 && (text[at] & 0xc0) == 0x80) --at;
  return DecodeUtf8(text.substr(at), size);
}

size_t TrailingSpace(std::string_view text) {
  size_t end = text.size();
  while (end > 0) {
    size_t size = 0;
    if (!IsWhiteSpace(LastCharacter(text.substr(0, end), &size))) break;
    end -= size;
  }
  return text.size() - end;
}

bool StartsWithWord(std::string_view text) {
  size_t size = 0;
  return !text.empty() && IsWordCharacter(DecodeUtf8(text, &size));
}

bool EndsWithWord(std::string_view text) {
  size_t size = 0;
  return !text.empty() && IsWordCharacter(LastCharacter(text, &size));
}

}  // namespace

void AddedTokens::Add(AddedToken token) {
  if (token.content.empty()) return;
  uint32_t node = 0;
  for (const char c : token.content) {
    const auto [edge, added] =
        edges_.try_emplace(uint64_t{node} << 8 | static_cast<unsigned char>(c), nodes_);
    if (added) ++nodes_;
    node = edge->second;
  }
  first_bytes_.set(static_cast<unsigned char>(token.content[0]));
  ends_.try_emplace(node, tokens_.size());
  tokens_.push_back(std::move(token));
}

const AddedToken* AddedTokens::Match(std::string_view text) const {
  const AddedToken* longest = nullptr;
  uint32_t node = 0;
  for (const char c : text) {
    const auto edge = edges_.find(uint64_t{node} << 8 | static_cast<unsigned char>(c));
    if (edge == edges_.end()) break;
    node = edge->second;
    if (const auto end = ends_.find(node); end != ends_.end()) longest = &tokens_[end->second];
  }
  return longest;
}

void AddedTokens::Split(std::string_view text, std::vector<Part>* parts) const {
  size_t done = 0;
  for (size_t at = 0; at < text.size();) {
    const AddedToken* token = nullptr;
    if (first_bytes_.test(static_cast<unsigned char>(text[at]))) token = Match(text.substr(at));
    if (!token) {
      ++at;
      continue;
    }
    size_t begin = at;
    size_t end = at + token->content.size();
    at = end;
    if (token->single_word &&
        (EndsWithWord(text.substr(0, begin)) || StartsWithWord(text.substr(end)))) {
      continue;
    }
    if (token->strip_left) {
      begin = std::max(begin, done);  // the token before it may have taken all of it along
      if (begin >= end) continue;
      begin -= TrailingSpace(text.substr(done, begin - done));
    }
    if (token->strip_right) end += LeadingSpace(text.substr(end));
    if (begin > done) parts->push_back({text.substr(done, begin - done), -1});
    parts->push_back({text.substr(begin, end - begin), token->id});
    done = end;
  }
  if (done < text.size()) parts->push_back({text.substr(done), -1});
}

}  // namespace kvcake
