// Detects lost peers of an idle chain.
#pragma once

#include <functional>

#include "comm/comm.h"

namespace kvcake {

// Calls `lost`, for every other rank once, when transfers with it end in an error: that of a rank
// that is gone (TCP; MPI ends the process), or of Close. On a thread of the Comm's own, as a
// `done`.
void WatchPeers(Comm& comm, const std::function<void(const Error&)>& lost);

}  // namespace kvcake
