#include "base/utf8.h"

#include <algorithm>

namespace kvcake {

namespace {

struct Part {
  size_t size;    // bytes looked at, at least 1
  bool valid;     // a whole character
  bool complete;  // false: the text ended within what could be a character
};

// The character at the start of non-empty text, or the maximal part of one.
Part FirstPart(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned lead = byte(0);
  if (lead < 0x80) return {1, true, true};
  if (lead < 0xc2 || lead > 0xf4) return {1, false, true};
  const size_t length = lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  // The second byte's range excludes overlong forms, surrogates and what lies beyond U+10FFFF.
  unsigned low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
  unsigned high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
  for (size_t i = 1; i < length; ++i) {
    if (i == text.size()) return {i, false, false};
    if (byte(i) < low || byte(i) > high) return {i, false, true};
    low = 0x80;
    high = 0xbf;
  }
  return {length, true, true};
}

}  // namespace

bool IsValidUtf8(std::string_view text) {
  while (!text.empty()) {
    const Part part = FirstPart(text);
    if (!part.valid) return false;
    text.remove_prefix(part.size);
  }
  return true;
}

std::string ReplaceInvalidUtf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const Part part = FirstPart(text);
    out += part.valid ? text.substr(0, part.size) : "\xef\xbf\xbd";
    text.remove_prefix(part.size);
  }
  return out;
}

std::string Printable(std::string_view text) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  out.reserve(text.size());
  const auto escape = [&out](unsigned code) {
    out += {'\\', 'x', kDigits[code >> 4], kDigits[code & 15]};
  };
  while (!text.empty()) {
    const Part part = FirstPart(text);
    const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
    if (!part.valid) {
      for (size_t i = 0; i < part.size; ++i) escape(byte(i));
    } else if (part.size == 1 && (byte(0) < 0x20 || byte(0) == 0x7f)) {
      escape(byte(0));
    } else if (part.size == 2 && byte(0) == 0xc2 && byte(1) < 0xa0) {
      escape(byte(1));  // U+0080 to U+009F
    } else {
      out += text.substr(0, part.size);
    }
    text.remove_prefix(part.size);
  }
  return out;
}

size_t IncompleteUtf8Suffix(std::string_view text) {
  // The longest first: "\xf0\x9f" ends in a start of two bytes, not in a stray one.
  for (size_t n = std::min<size_t>(3, text.size()); n > 0; --n) {
    const Part part = FirstPart(text.substr(text.size() - n));
    if (!part.complete && part.size == n) return n;
  }
  return 0;
}

std::string Clip(std::string_view text, size_t bytes) {
  if (text.size() <= bytes) return std::string(text);
  while (bytes > 0 && (text[bytes] & 0xc0) == 0x80) --bytes;
  return std::string(text.substr(0, bytes)) + "...";
}

void AppendUtf8(char32_t code, std::string* out) {
  const auto tail = [&](int shift) {
    out->push_back(static_cast<char>(0x80 | (code >> shift & 0x3f)));
  };
  if (code < 0x80) {
    out->push_back(static_cast<char>(code));
  } else if (code < 0x800) {
    out->push_back(static_cast<char>(0xc0 | code >> 6));
    tail(0);
  } else if (code < 0x10000) {
    out->push_back(static_cast<char>(0xe0 | code >> 12));
    tail(6);
    tail(0);
  } else {
    out->push_back(static_cast<char>(0xf0 | code >> 18));
    tail(12);
    tail(6);
    tail(0);
  }
}

char32_t DecodeUtf8(std::string_view text, size_t* size) {
  const auto byte = [&](size_t i) { return static_cast<char32_t>(text[i] & 0xff); };
  const char32_t lead = byte(0);
  if (lead < 0x80) {
    *size = 1;
    return lead;
  }
  if (lead < 0xe0) {
    *size = 2;
    return (lead & 0x1f) << 6 | (byte(1) & 0x3f);
  }
  if (lead < 0xf0) {
    *size = 3;
    return (lead & 0x0f) << 12 | (byte(1) & 0x3f) << 6 | (byte(2) & 0x3f);
  }
  *size = 4;
  return (lead & 7) << 18 | (byte(1) & 0x3f) << 12 | (byte(2) & 0x3f) << 6 | (byte(3) & 0x3f);
}

}  // namespace kvcake
