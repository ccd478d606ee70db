// Real Redis servers for benches.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "bench/child_process.h"

namespace kvcake::bench {

// Masters of a cluster on this machine, with all slots between them, which keep everything in
// memory. Owns their processes. One thread.
class RedisCluster {
 public:
  // Returns once they agree that their cluster is fine. Their files are in `dir`. kNotFound names
  // the Debian package that is missing.
  static Result<std::unique_ptr<RedisCluster>> Start(int masters, const std::string& dir);

  // What --store takes. Chunks under one prefix are none under another.
  std::string Url(const std::string& prefix) const;

 private:
  struct Node {
    ChildProcess process = {};
    uint16_t port = 0, bus_port = 0;
  };

  RedisCluster(std::string server, std::string cli, std::string dir)
      : server_(std::move(server)), cli_(std::move(cli)), dir_(std::move(dir)) {}
  Status StartNode();
  Result<bool> TryStart(Node* node, const std::string& dir) const;
  Status Join();
  // What redis-cli prints for a command to a node. Fails where it cannot ask.
  Result<std::string> Ask(const Node& node, const std::vector<std::string>& command) const;
  // Fails with what Redis answers, unless that is "OK".
  Status Tell(const Node& node, const std::vector<std::string>& command) const;

  const std::string server_, cli_, dir_;
  std::vector<Node> nodes_;
};

}  // namespace kvcake::bench
