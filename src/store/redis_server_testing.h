// Real Redis servers for tests.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/temp_dir_testing.h"

namespace kvcake {

// A redis-server with an empty data set that is kept in memory only, on a port of its own.
class RedisServer {
 public:
  // Returns once it accepts connections. `options` are as on its command line.
  explicit RedisServer(std::vector<std::string> options = {});
  // Kills it.
  ~RedisServer();
  RedisServer(const RedisServer&) = delete;
  RedisServer& operator=(const RedisServer&) = delete;

  uint16_t port() const { return port_; }
  const std::string& dir() const { return dir_.path(); }

  // Ends it at once, as a crash does.
  void Kill();
  // Begins again, empty, on the same port.
  void Start();
  // Stops and resumes the process.
  void Pause();
  void Resume();
  // What redis-cli prints for a command.
  std::string Cli(const std::vector<std::string>& command) const;

 private:
  bool TryStart();

  const TempDir dir_;
  const std::vector<std::string> options_;
  uint16_t port_ = 0;
  pid_t pid_ = -1;
};

}  // namespace kvcake
