// Ranks of one machine that one process has started. Each has inherited one end of a control
// socket, whose other end is the leader's. For each chain the leader connects every two ranks by a
// pair of local sockets and passes each rank its ends over the control sockets: nothing listens, so
// nobody else can call, and a rank is who holds the descriptor.
#pragma once

#include <memory>
#include <span>
#include <stop_token>

#include "comm/comm.h"

namespace kvcake {

inline constexpr int kLocalRanksMax = 64;

// The two ends of a control socket, both closed by exec. kResourceExhausted.
struct ControlSockets {
  int leader = -1, worker = -1;  // the caller's to close
};
Result<ControlSockets> NewControlSockets();

// Called by a worker: sleeps until its leader has made a chain. kCancelled: `stop` was asked for;
// kNotFound: the leader is gone for good; kCorrupt: what came is no chain of this kvcake's kind.
Result<std::unique_ptr<Comm>> AwaitLocalLeader(int control, const std::stop_token& stop);

// Called by the leader, the last rank: a chain with the workers at the other ends of these, in
// their order. Never waits for them: one that does not take part is found by what they say next.
// kIo: one is gone; kResourceExhausted.
Result<std::unique_ptr<Comm>> GatherLocalWorkers(std::span<const int> controls);

}  // namespace kvcake
