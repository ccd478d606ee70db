// Connected ranks in this process, for tests that any Comm should pass.
#pragma once

#include <memory>
#include <vector>

#include "comm/comm.h"

namespace kvcake::testing_util {

using Comms = std::vector<std::unique_ptr<Comm>>;

// Over 127.0.0.1.
Comms NewLocalTcpComms(int size, uint64_t aside_bytes_max = 64 << 20);
// That, in TLS.
Comms NewLocalTlsComms(int size);
// Over pairs of local sockets, which a leader has passed on (local_join.h).
Comms NewSocketPairComms(int size);
// NewLocalTcpComms, or NewMemoryComms.
Comms NewLocalComms(bool tcp, int size, uint64_t aside_bytes_max = 64 << 20);

}  // namespace kvcake::testing_util
