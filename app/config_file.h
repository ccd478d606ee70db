// Flags that are kept in a file.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "base/status.h"

namespace kvcake {

// --config FILE, of a command whose flags a file may have.
void AddConfigFlag(CLI::App& command);

// The arguments of a command of `app` (its name first), and after them the flags of the TOML or INI
// file that --config names, but for those that the arguments have themselves, by whatever name:
// `max-num-seqs = 4` becomes --max-num-seqs=4, a list the flag once for each element, and what
// stands under [name] is for the command of that name alone, and goes there before what is for all;
// of that the flags of stores are left out where nobody gives a --store.
// kInvalidArgument, naming the section, where there is no such command.
Result<std::vector<std::string>> WithConfigFile(const CLI::App& app,
                                                std::vector<std::string> arguments);

// Added to the arguments with the file's path where some of the flags from it are keys.
inline constexpr char kConfigKeysFlag[] = "--config-with-keys";

}  // namespace kvcake
