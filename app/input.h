// Prompts and texts as people give them: files, and "-" for stdin.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace kvcake {

Result<std::string> ReadText(const std::string& path);

// Token ids: a JSON array, {"tokens": [...]}, or numbers separated by white space.
Result<std::vector<int32_t>> ReadTokens(const std::string& path);

}  // namespace kvcake
