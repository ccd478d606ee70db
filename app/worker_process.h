// A `kvcake worker` on this machine, started by this process and ended with it, even with -9.
#pragma once

#include <sys/types.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include "base/status.h"

namespace kvcake {

// "--name=value" of what the user has given to `command` and the worker takes as well.
std::vector<std::string> FlagsOfWorkers(const CLI::App& command);

class WorkerProcess {
 public:
  // Where it listens is the system's choice. It ends when the calling thread does, too.
  static Result<std::unique_ptr<WorkerProcess>> Start(const std::vector<std::string>& flags);
  // SIGTERM, and SIGKILL for what does not heed it.
  ~WorkerProcess();
  WorkerProcess(const WorkerProcess&) = delete;
  WorkerProcess& operator=(const WorkerProcess&) = delete;

  // Sleeps until it has loaded its model and listens: "host:port". kIo: it has ended; kCancelled.
  Result<std::string> Address(const std::stop_token& stop);
  bool Ended() const;
  // With -9: it may be stopped, or hang.
  void Kill();

 private:
  WorkerProcess(pid_t pid, int out) : pid_(pid), out_(out) {}

  const pid_t pid_;
  const int out_;        // reads what it prints; at its end, the end of that
  std::string address_;  // once it is known
};

}  // namespace kvcake
