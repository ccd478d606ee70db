// Ranks that only listen, and a leader that knows where: it tells each its number and the addresses
// of all, on the port where the chain's connections (tcp_comm.h) come in afterwards.
//
// Lines of text, which never change meaning. The leader: "kvcake-chain 1 RANK ADDRESS...", with an
// address for every rank but itself, the last; a worker: "ready"; the leader, when all are: "go".
#pragma once

#include <memory>
#include <span>
#include <stop_token>
#include <string>

#include "comm/tcp_comm.h"

namespace kvcake {

struct JoinOptions {
  Seconds patience{5};  // of the one side for the next line of the other
  Seconds connect{10};  // from "go" until all ranks are connected
};

struct JoinedChain {
  std::unique_ptr<Comm> comm;
  std::string leader;  // where it called from
};

// Called by a worker: sleeps until a leader has called and its chain is connected; `listener` stays
// open. Calls that are no leader's are closed and hinder nobody. kCancelled: `stop` was asked for;
// else the error of a chain that a leader has called for in vain.
Result<JoinedChain> AwaitLeader(const TcpListener& listener, const std::stop_token& stop,
                                const JoinOptions& options = {});

// Called by the leader: makes a chain with these ("host:port" as every rank reaches it) before it.
// An error names each that is not ready: kInvalidArgument where something else than a worker
// answers there, or an address is none; kCancelled: `stop` was asked for.
Result<std::unique_ptr<Comm>> GatherWorkers(std::span<const std::string> workers,
                                            const std::stop_token& stop,
                                            const JoinOptions& options = {});

}  // namespace kvcake
