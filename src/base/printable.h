// What others have said, made fit for a log or a terminal.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>

namespace kvcake {

// With a question mark for each byte that is no printable ASCII: one line, and no control codes.
inline std::string PrintableAscii(std::string_view text) {
  std::string printable(text);
  std::ranges::replace_if(
      printable, [](char c) { return c < ' ' || c > '~'; }, '?');
  return printable;
}

}  // namespace kvcake
