// Files that hold a secret.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "base/status.h"

namespace kvcake {

// The file's text without white space at its end, or the first `bytes_max` + 1 bytes of more; that
// it is long enough is for the caller to see. `flag` is what named the file, for messages: kIo
// where it cannot be read, kInvalidArgument where it is no file or others than its owner may use
// it.
Result<std::string> ReadSecretFile(const std::string& file, std::string_view flag,
                                   size_t bytes_max);

// Secrets end where their text does: what writes them often adds a line's end.
std::string WithoutSpaceAtEnd(std::string text);

}  // namespace kvcake
