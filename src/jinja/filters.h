// What files of filters share.
#pragma once

#include <map>
#include <string_view>

#include "jinja/value.h"

namespace kvcake::jinja {

using Filters = std::map<std::string_view, Function>;
const Filters& TextFilters();
const Filters& NumberFilters();
const Filters& SequenceFilters();

// The text of what is no Markup: filters of text would have to say what becomes of it.
std::string PlainText(const Value& value, std::string_view filter);
// A value that can be iterated once.
Value Generator(Values values);

}  // namespace kvcake::jinja
