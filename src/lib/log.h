// Where the library's messages go: to stderr, or to a function of the caller's.
#pragma once

#include "lib/kvcake.h"

namespace kvcake {

// Before the first message of a cache. A default logger that the host has given a name stays.
void InstallLog();
// Messages go to `function` from now on; null: to stderr. When it returns, the function before is
// not running, and not called again. Thread-safe.
void SetLog(kvcake_log_function function, void* context);

}  // namespace kvcake
