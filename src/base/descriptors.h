// How many files and sockets this process may have open.
#pragma once

#include <cstdint>

namespace kvcake {

// Raises the limit as far as an unprivileged process can. What it is then.
uint64_t RaiseDescriptorLimit();

}  // namespace kvcake
