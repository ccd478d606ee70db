// HAProxy in front of servers on this machine.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"
#include "bench/child_process.h"
#include "bench/haproxy_config.h"

namespace kvcake::bench {

// Owns the process. One thread.
class Haproxy {
 public:
  // Returns when it listens, at a port of its own. Servers need not be there yet: they are used
  // when they are. Configuration and log are in `dir`. kNotFound names the Debian package that is
  // missing.
  static Result<std::unique_ptr<Haproxy>> Start(Balance balance, std::span<const uint16_t> servers,
                                                const std::string& dir);

  uint16_t port() const { return port_; }
  // All that it has logged so far.
  Result<std::string> Log() const;
  // Waits until checks have found that a server is there that was not, or the reverse.
  Status WaitFor(int server, bool there) const;

 private:
  Haproxy(ChildProcess process, uint16_t port, std::string log)
      : process_(std::move(process)), port_(port), log_(std::move(log)) {}

  ChildProcess process_;
  const uint16_t port_;
  const std::string log_;
};

}  // namespace kvcake::bench
