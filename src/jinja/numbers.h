// Numbers as Python reads them from text.
#pragma once

#include <optional>
#include <string_view>

#include "jinja/value.h"

namespace kvcake::jinja {

// int(text, base); nothing where Python raises ValueError.
std::optional<int64_t> ParseInteger(std::string_view text, int64_t base);
// float(text), likewise.
std::optional<double> ParseFloat(std::string_view text);

}  // namespace kvcake::jinja
