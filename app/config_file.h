// Flags that are kept in a file.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"

namespace kvcake {

// The arguments of a command (its name first), and after them the flags of the TOML or INI file that
// --config names, but for those that the arguments have themselves: `max-num-seqs = 4` becomes
// --max-num-seqs=4, a list the flag once for each element, and what stands under [name] is for the
// command of that name alone. A file with keys that others may read is a warning.
Result<std::vector<std::string>> WithConfigFile(std::vector<std::string> arguments);

// Warns that everybody on this machine may read the keys in a file, where that is so.
void WarnIfOthersRead(const std::string& path);

}  // namespace kvcake
