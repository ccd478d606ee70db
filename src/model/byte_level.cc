#include "model/byte_level.h"

#include <array>

#include "base/utf8.h"

namespace kvcake {

namespace {

constexpr char32_t kAlphabetEnd = 0x144;  // 68 bytes are not visible

bool Visible(int byte) {
  return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
}

struct Alphabet {
  std::array<std::string, 256> texts;
  std::array<int, kAlphabetEnd> bytes;  // by code point; -1: none

  Alphabet() {
    bytes.fill(-1);
    int next = 0x100;
    for (int byte = 0; byte < 256; ++byte) {
      const int code = Visible(byte) ? byte : next++;
      bytes[code] = byte;
      texts[byte] = code < 0x80 ? std::string(1, static_cast<char>(code))
                                : std::string{static_cast<char>(0xc0 | (code >> 6)),
                                              static_cast<char>(0x80 | (code & 0x3f))};
    }
  }
};

const Alphabet& TheAlphabet() {
  static const Alphabet alphabet;
  return alphabet;
}

}  // namespace

const std::string& ByteAsText(unsigned char byte) { return TheAlphabet().texts[byte]; }

std::optional<std::string> TextAsBytes(std::string_view text) {
  std::string bytes;
  bytes.reserve(text.size());
  while (!text.empty()) {
    size_t size = 0;
    const char32_t code = DecodeUtf8(text, &size);
    if (code >= kAlphabetEnd || TheAlphabet().bytes[code] < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(TheAlphabet().bytes[code]));
    text.remove_prefix(size);
  }
  return bytes;
}

}  // namespace kvcake
