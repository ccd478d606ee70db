// Ranks over streams, TCP's or local ones, for chains that a server starts: idle ranks sleep, and a
// lost rank is an error of the transfers with it, not of the process.
//
// Every two ranks have one connection; the higher one opens it. A message goes straight from the
// sender's buffer into the posted one. One whose receive is not posted yet is kept aside, up to a
// bound; beyond it the reading of that connection pauses until the receive comes, so that what
// follows the message has to wait too, and that the peer is gone may be noticed only then. Ranks
// prove to each other that they have the cluster's key when they connect (mesh_hello.h); what they
// say then goes in the clear, or all of it in TLS (rank_tls.h).
#pragma once

#include <cstdint>
#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include "base/clock.h"
#include "comm/cluster_key.h"
#include "comm/comm.h"
#include "comm/rank_tls.h"

namespace kvcake {

// A socket that listens for ranks of one chain after the other.
class TcpListener {
 public:
  // "host:port" or "[IPv6]:port"; port 0 is one that the system chooses. kInvalidArgument or kIo.
  static Result<TcpListener> Open(const std::string& address);
  TcpListener(TcpListener&& other) noexcept;
  TcpListener& operator=(TcpListener&&) = delete;
  ~TcpListener();

  int fd() const { return fd_; }
  uint16_t port() const { return port_; }
  // Whether none but this machine's processes can call.
  bool loopback() const { return loopback_; }

 private:
  TcpListener(int fd, uint16_t port, bool loopback) : fd_(fd), port_(port), loopback_(loopback) {}

  int fd_;
  uint16_t port_;
  bool loopback_;
};

struct TcpCommOptions {
  int rank = 0;
  std::vector<std::string> addresses;  // "host:port" of every rank, as this one reaches it
  // Likewise, of those before this one, where they have been looked up already: in their place.
  std::vector<std::string> reached = {};
  Seconds timeout{30};                     // until every rank is connected
  uint64_t aside_bytes_max = 64ull << 20;  // from each rank
  Seconds silence{25};                     // of a rank that is sent something, until it is lost
  // What both ends of each connection prove (mesh_hello.h).
  ClusterKey key = {};
  Digest roster = {};
  Digest facts = {};
  RankTls tls = {};           // what connections begin with
  std::stop_token stop = {};  // asked for while it connects: kCancelled
};

// Connects with every other rank, in whatever order they are started; `listener` stays open. An
// error names the ranks that are missing, with their addresses. Looking up host names may take the
// system longer than the timeout.
Result<std::unique_ptr<Comm>> ConnectTcp(const TcpListener& listener,
                                         const TcpCommOptions& options);

// A rank over stream sockets that are connected with the others already: descriptors by rank, which
// it takes over, and -1 for its own. `options.addresses` are names for errors.
std::unique_ptr<Comm> CommOverSockets(const TcpCommOptions& options,
                                      const std::vector<int>& sockets);

}  // namespace kvcake
