// Text that a model was not trained on.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/status.h"

namespace kvcake::bench {

// kInvalidArgument where the file cannot be read, or is empty.
Result<std::string> ReadWholeText(const std::filesystem::path& path);
// The *.txt of a directory by name, without names.txt; kInvalidArgument where there are none.
Result<std::vector<std::string>> ReadHeldOut(const std::string& dir);

}  // namespace kvcake::bench
