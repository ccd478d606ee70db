// What filters, tests and methods do to text alike, as Python's str does it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "jinja/unicode_table.h"

namespace kvcake::jinja {

enum class Side { kLeft = 1, kRight = 2, kBoth = 3 };
// Without characters: whitespace as Unicode has it.
std::string Strip(std::string_view text, const std::string* characters, Side side);
std::string Replace(std::string_view text, std::string_view from, std::string_view to,
                    int64_t count);
// One more part of a text. Parts are values in the end, which may be much larger than the text.
void AddPart(std::string part, std::vector<std::string>* parts);
// As str.splitlines has them, with their ends or without.
std::vector<std::string> Lines(std::string_view text, bool ends);
// To `width` characters; in the middle with kBoth, else spaces come on that side.
std::string Pad(std::string_view text, int64_t width, char32_t fill, Side side);

std::string Upper(std::string_view text);
std::string Lower(std::string_view text);
std::string CaseFold(std::string_view text);
std::string SwapCase(std::string_view text);
std::string Capitalize(std::string_view text);
std::string TitleCase(std::string_view text);  // str.title; the filter has its own idea of words
bool IsUpper(std::string_view text);
bool IsLower(std::string_view text);
bool IsTitle(std::string_view text);

bool Has(char32_t code, uint16_t classes);  // one of them

}  // namespace kvcake::jinja
