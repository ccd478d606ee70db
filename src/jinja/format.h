// Python's two ways to format: "%5.2f" % x and "{:5.2f}".format(x).
#pragma once

#include <string>
#include <string_view>

#include "jinja/value.h"

namespace kvcake::jinja {

// `values`: a tuple, a dictionary for %(name)s, or the only value.
std::string FormatPercent(std::string_view format, const Value& values);
std::string FormatBraces(std::string_view format, const Args& args);

}  // namespace kvcake::jinja
