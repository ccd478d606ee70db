// Detects lost peers of an idle chain.
#pragma once

#include <functional>

#include "comm/comm.h"

namespace kvcake {

// Calls `lost` once, when transfers with this rank end in an error: that of a rank that is gone
// (TCP; MPI ends the process), or of Close. On a thread of the Comm's own, as a `done`.
void WatchPeer(Comm& comm, int peer, const std::function<void(const Error&)>& lost);
// That, for every other rank.
void WatchPeers(Comm& comm, const std::function<void(const Error&)>& lost);

}  // namespace kvcake
