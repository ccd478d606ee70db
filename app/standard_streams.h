// stdin, stdout and stderr, whatever the program was given for them.
#pragma once

#include "base/status.h"

namespace kvcake {

// Before any file is opened: of those that are closed makes /dev/null, as the next files that are
// opened would take their places, and what is printed.
void FillStandardStreams();

// An error: not all that was printed has been written.
[[nodiscard]] Status FlushStdout();

}  // namespace kvcake
