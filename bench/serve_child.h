// `kvcake serve` as a child process.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "bench/child_process.h"

namespace kvcake::bench {

// Owns the process, which is ended at once with it.
class ServeChild {
 public:
  // Starts `program serve FLAGS`, and returns when it listens: at `port`, or where that is 0 at one
  // that is free. What it prints goes to `log`, whose end is in the error when it does not start.
  static Result<std::unique_ptr<ServeChild>> Start(const std::string& program,
                                                   const std::vector<std::string>& flags,
                                                   const std::string& log, uint16_t port = 0);

  uint16_t port() const { return port_; }
  Result<uint64_t> RssBytes() const;

 private:
  explicit ServeChild(ChildProcess process) : process_(std::move(process)) {}

  ChildProcess process_;
  uint16_t port_ = 0;
};

}  // namespace kvcake::bench
