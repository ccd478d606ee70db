// Ranks in one process, for tests and emulated GPUs: one thread copies the bytes of all.
//
// A send ends when its message has been received: nothing is kept on the way, so what relies on a
// send ending before its receive is posted never ends here.
#pragma once

#include <memory>
#include <vector>

#include "comm/comm.h"

namespace kvcake {

// One Comm for each of `size` ranks, in order.
std::vector<std::unique_ptr<Comm>> NewMemoryComms(int size);

}  // namespace kvcake
