// The string literals of a Jinja template that it may write for a plain conversation.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace kvcake {

// As they are written, escapes undone. Left out are literals that are compared with, are keys, or
// are arguments of calls (raise_exception), and all under a condition that speaks of what plain
// conversations do not have: tools, images, documents.
std::vector<std::string> WrittenLiterals(std::string_view jinja);

}  // namespace kvcake
