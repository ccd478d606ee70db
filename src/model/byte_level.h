// The alphabet in which byte-level BPE writes bytes as visible characters ("Ġthe" is " the").
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace kvcake {

// The character, in UTF-8, for a byte: the byte's own Latin-1 character where that is visible, else
// one from U+0100 up.
const std::string& ByteAsText(unsigned char byte);
// The bytes that valid UTF-8 in that alphabet stands for; empty when a character is none of it.
std::optional<std::string> TextAsBytes(std::string_view text);

}  // namespace kvcake
