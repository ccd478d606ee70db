// Unicode normalisation form C, which some tokenizers apply to text first.
#pragma once

#include <string>
#include <string_view>

namespace kvcake {

// Takes and returns valid UTF-8. Characters assigned after the Unicode version of nfc_table.cc stay
// as they are.
std::string Nfc(std::string_view text);

}  // namespace kvcake
