// What filters and methods do to text alike.
#pragma once

#include <string>
#include <string_view>

namespace kvcake::jinja {

enum class Side { kLeft = 1, kRight = 2, kBoth = 3 };
// Without characters: whitespace as Unicode has it.
std::string Strip(std::string_view text, const std::string* characters, Side side);
std::string Upper(std::string_view text);
std::string Lower(std::string_view text);
std::string Capitalize(std::string_view text);
std::string Replace(std::string_view text, std::string_view from, std::string_view to,
                    long long count);

}  // namespace kvcake::jinja
