// JSON from files that may be broken or hostile: bounded, and every error names the file.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "base/status.h"

namespace kvcake {

struct JsonLimits {
  uint64_t max_bytes = 16ull << 20;
  uint64_t max_values = 4ull << 20;  // objects, arrays, members and elements; bounds the memory
  int max_depth = 64;
  bool unique_names = false;  // refuse an object that names a member twice (else the last counts)
};

// kNotFound: no such file; kResourceExhausted: over a limit; kInvalidArgument: not JSON.
Result<nlohmann::json> ReadJsonFile(const std::string& path, const JsonLimits& limits = {});
// `source` names the text in errors.
Result<nlohmann::json> ParseJson(std::string_view text, const std::string& source,
                                 const JsonLimits& limits = {});

}  // namespace kvcake
