// Several `kvcake serve` behind one HAProxy.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "bench/haproxy.h"
#include "bench/serve_child.h"

namespace kvcake::bench {

struct FleetServersOptions {
  int servers = 1;
  bool spare = false;  // one more that the balancer knows of and that is not there until Join
  Balance balance = Balance::kRoundRobin;
  std::string program = {};             // empty: this one
  std::vector<std::string> flags = {};  // of each server
  std::string dir = {};                 // for logs
};

// What servers have counted since they started.
struct ServerCounts {
  double requests = 0;  // answered
  double prompt_tokens = 0, cached_tokens = 0;
  double chunks_computed = 0, chunks_loaded = 0;
  double written_twice = 0;  // chunks that were stored already when they were to be written
  double running = 0;        // requests
  double writes = 0;         // chunks that wait to be written or are

  ServerCounts& operator+=(const ServerCounts& other);
};
// From the text of /metrics.
ServerCounts CountsIn(std::string_view metrics);

// Owns the processes. One thread.
class FleetServers {
 public:
  // Returns when all but the spare answer.
  static Result<std::unique_ptr<FleetServers>> Start(FleetServersOptions options);

  std::string url() const;  // the balancer's
  const Haproxy& balancer() const { return *balancer_; }
  int size() const { return static_cast<int>(servers_.size()); }
  bool IsThere(int server) const { return servers_[server] != nullptr; }

  // Starts the spare, the last one, and returns when the balancer sends requests to it.
  Status Join();
  // Ends a server at once, as `kill -9` does.
  void Kill(int server) { servers_[server].reset(); }

  Result<ServerCounts> Counts(int server) const;
  // The sum of all that are there.
  Result<ServerCounts> Counts() const;
  // Waits until no request runs and all that is to be stored is.
  Status WaitUntilIdle() const;

 private:
  explicit FleetServers(FleetServersOptions options) : options_(std::move(options)) {}
  Result<std::unique_ptr<ServeChild>> StartServer(int server, uint16_t port) const;

  const FleetServersOptions options_;
  std::vector<std::unique_ptr<ServeChild>> servers_;  // null: it is not there
  HeldPort spare_port_;
  std::unique_ptr<Haproxy> balancer_;
};

}  // namespace kvcake::bench
