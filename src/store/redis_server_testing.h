// Real Redis servers for tests.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/temp_dir_testing.h"

namespace kvcake {

// A redis-server with an empty data set that is kept in memory only, on a port of its own.
class RedisServer {
 public:
  enum class Transport { kPlain, kTls };
  // Returns once it accepts connections. `options` are as on its command line.
  explicit RedisServer(std::vector<std::string> options = {},
                       Transport transport = Transport::kPlain);
  // Kills it.
  ~RedisServer();
  RedisServer(const RedisServer&) = delete;
  RedisServer& operator=(const RedisServer&) = delete;

  uint16_t port() const { return port_; }
  uint16_t bus_port() const { return bus_port_; }  // 0: in no cluster
  const std::string& dir() const { return dir_.path(); }

  // Ends it at once, as a crash does.
  void Kill();
  // Begins again, empty, on the same port.
  void Start();
  // Stops and resumes the process.
  void Pause();
  void Resume();
  // What redis-cli prints for a command, in the clear.
  std::string Cli(const std::vector<std::string>& command) const;

 private:
  bool TryStart();

  const TempDir dir_;
  const std::vector<std::string> options_;
  const Transport transport_;
  uint16_t port_ = 0, bus_port_ = 0;
  pid_t pid_ = -1;
};

// Masters of a cluster, with all slots between them.
class RedisMasters {
 public:
  // Returns once they agree that their cluster is fine.
  explicit RedisMasters(int masters = 3);

  RedisServer& operator[](int i) { return *servers_[i]; }
  int size() const { return static_cast<int>(servers_.size()); }
  // Its id in the cluster.
  std::string Id(int i) const;

 private:
  std::vector<std::unique_ptr<RedisServer>> servers_;
};

}  // namespace kvcake
