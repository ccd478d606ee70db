// stdin, stdout and stderr, whatever the program was given for them.
#pragma once

#include "base/status.h"

namespace kvcake {

// An error: not all that was printed has been written.
[[nodiscard]] Status FlushStdout();

}  // namespace kvcake
