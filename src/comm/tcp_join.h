// Ranks that only listen, and a leader that knows where: it tells each its number and the addresses
// of all, on the port where the chain's connections (tcp_comm.h) come in afterwards.
//
// Each side proves that it has the cluster's key before the other does anything for it
// (join_message.h says how), or shows a certificate of its authority's (rank_tls.h), or both.
// Without either anybody can: then a chain has loopback addresses only, and what its ranks say is
// nobody's word (JoinOptions::authenticated).
#pragma once

#include <memory>
#include <span>
#include <stop_token>
#include <string>

#include "comm/cluster_key.h"
#include "comm/tcp_comm.h"

namespace kvcake {

struct JoinOptions {
  Seconds patience{5};  // of the one side for the next line of the other
  Seconds connect{10};  // from "go" until all ranks are connected
  ClusterKey key = {};
  Digest facts = {};  // of what this side runs (FactsDigest), for its proofs
  RankTls tls = {};   // what every connection begins with, those of the chain too

  // Whether nobody is a rank who has not shown that it belongs to the cluster.
  bool authenticated() const { return !key.empty() || !tls.empty(); }
};

struct JoinedChain {
  std::unique_ptr<Comm> comm;
  std::string leader;  // where it called from
};

// Called by a worker: sleeps until a leader has called and its chain is connected; `listener` stays
// open. Calls that are no leader's are closed and hinder nobody: so many are listened to at once,
// and one that has proved nothing makes room for the next (crowd.h). kCancelled: `stop` was asked
// for; else the error of a chain that a leader has called for in vain.
Result<JoinedChain> AwaitLeader(const TcpListener& listener, const std::stop_token& stop,
                                const JoinOptions& options = {});

// Called by a worker that has a leader: tells those who call that it is taken, by whom, until
// `stop` is asked for. As many are listened to at once, and `listener` stays open.
void DeclineLeaders(const TcpListener& listener, const std::stop_token& stop,
                    const JoinOptions& options, const std::string& leader);

// Called by the leader: makes a chain with these ("host:port" as every rank reaches it) before it.
// An error names each that is not ready: kInvalidArgument where something else than a worker with
// the same key answers there, or an address is none; kCancelled: `stop` was asked for.
Result<std::unique_ptr<Comm>> GatherWorkers(std::span<const std::string> workers,
                                            const std::stop_token& stop,
                                            const JoinOptions& options = {});

}  // namespace kvcake
