// A `kvcake worker` on this machine, started by this process and ended with it, even with -9. It
// listens nowhere: it has inherited a control socket (comm/local_join.h).
#pragma once

#include <sys/types.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace kvcake {

// "--name=value" of what the user has given to `command` and the worker takes as well.
std::vector<std::string> FlagsOfWorkers(const CLI::App& command);
// What a worker's --listen begins with where a descriptor follows that it has inherited.
inline constexpr std::string_view kInherited = "fd:";

class WorkerProcess {
 public:
  // It ends when the calling thread does, too.
  static Result<std::unique_ptr<WorkerProcess>> Start(const std::vector<std::string>& flags);
  // SIGTERM, and SIGKILL for what does not heed it.
  ~WorkerProcess();
  WorkerProcess(const WorkerProcess&) = delete;
  WorkerProcess& operator=(const WorkerProcess&) = delete;

  // Sleeps until it has loaded its model. kIo: it has ended; kCancelled.
  Status AwaitReady(const std::stop_token& stop);
  // This process's end of the control socket.
  int control() const { return control_; }
  bool Ended() const;
  // With -9: it may be stopped, or hang.
  void Kill();

 private:
  WorkerProcess(pid_t pid, int out, int control) : pid_(pid), out_(out), control_(control) {}

  const pid_t pid_;
  const int out_;  // reads what it prints; at its end, the end of that
  const int control_;
  std::string said_;  // a line, once it is ready
};

}  // namespace kvcake
