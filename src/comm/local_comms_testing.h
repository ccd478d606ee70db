// For tests that any Comm should pass: connected ranks in this process.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "base/check.h"
#include "comm/memory_comm.h"
#include "comm/tcp_comm.h"

namespace kvcake::testing_util {

using Comms = std::vector<std::unique_ptr<Comm>>;

inline Comms NewLocalComms(bool tcp, int size, uint64_t aside_bytes_max = 64 << 20) {
  if (!tcp) return NewMemoryComms(size);
  auto comms = NewLocalTcpComms(size, aside_bytes_max);
  CHECK(comms.has_value());
  return std::move(*comms);
}

}  // namespace kvcake::testing_util
