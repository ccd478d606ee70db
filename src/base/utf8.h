// UTF-8 as text from outside needs it: damage becomes U+FFFD, never an error.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace kvcake {

// The text with U+FFFD for every maximal part that is no character, as Unicode recommends and
// Python's errors="replace" does.
std::string ReplaceInvalidUtf8(std::string_view text);
bool IsValidUtf8(std::string_view text);

// The text with \xNN for what moves a cursor or commands a terminal (C0 and C1 controls, DEL) and
// for bytes that are no UTF-8: it is one line of a log, whoever wrote it.
std::string Printable(std::string_view text);

// How many bytes at the end of the text are the start of a character that more bytes could
// complete: 0 to 3.
size_t IncompleteUtf8Suffix(std::string_view text);

// At most `bytes` of valid text, in whole characters, and "..." where that is not all of it.
std::string Clip(std::string_view text, size_t bytes);

void AppendUtf8(char32_t code, std::string* out);

// The code point at the start of valid, non-empty text; its size in *size.
char32_t DecodeUtf8(std::string_view text, size_t* size);

}  // namespace kvcake
