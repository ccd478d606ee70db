// The flags that say which keys clients have.
#pragma once

#include <CLI/CLI.hpp>

#include "base/status.h"
#include "server/api_keys.h"

namespace kvcake {

// --api-key, --admin-key, the files of both, and the hidden one by which WithConfigFile tells of a
// file that has them.
void AddKeyFlags(CLI::App& app, KeySources* sources);

// As ApiKeys::Load. kInvalidArgument also where a variable of the environment is empty that should
// have one; a warning where everybody on this machine may read a file of keys.
Result<ApiKeys> LoadKeys(const KeySources& sources);

}  // namespace kvcake
