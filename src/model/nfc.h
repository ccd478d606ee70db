// Unicode normalisation form C, which some tokenizers apply to text first.
#pragma once

#include <string>
#include <string_view>

namespace kvcake {

// Takes and returns valid UTF-8. Characters that Unicode 9 did not know stay as they are, as in
// Hugging Face tokenizers.
std::string Nfc(std::string_view text);

}  // namespace kvcake
