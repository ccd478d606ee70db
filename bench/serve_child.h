// `kvcake serve` as a child process.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"

namespace kvcake::bench {

class ServeChild {
 public:
  // Starts `program serve FLAGS` on a free port, and returns when it listens. What it prints goes
  // to `log`, whose end is in the error when it does not start.
  static Result<std::unique_ptr<ServeChild>> Start(const std::string& program,
                                                   const std::vector<std::string>& flags,
                                                   const std::string& log);
  // Ends it at once.
  ~ServeChild();
  ServeChild(const ServeChild&) = delete;
  ServeChild& operator=(const ServeChild&) = delete;

  uint16_t port() const { return port_; }
  Result<uint64_t> RssBytes() const;

 private:
  explicit ServeChild(pid_t pid) : pid_(pid) {}

  const pid_t pid_;
  uint16_t port_ = 0;
};

}  // namespace kvcake::bench
