// The workers of this machine that a process starts to prefill its prompts with: kvcake serve and
// kvcake run --ranks.
#pragma once

#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include "app/worker_process.h"
#include "comm/comm.h"
#include "engine/runtime.h"

namespace kvcake {

class LocalWorkers {
 public:
  // Starts `ranks` - 1 with these flags, and leaves this process, the last rank, its share of the
  // machine in `options`. They end with the calling thread.
  static Result<std::unique_ptr<LocalWorkers>> Start(int ranks,
                                                     std::vector<std::string> worker_flags,
                                                     RuntimeOptions* options);

  // Sleeps until all have loaded their models, and connects them with each other and this process.
  Result<std::unique_ptr<Comm>> Connect(const std::stop_token& stop = {});
  // Starts those again that have ended.
  Status Restart();
  // With -9: what has not met is of no use.
  void KillAll();

 private:
  LocalWorkers() = default;

  std::vector<std::vector<std::string>> flags_;          // of each
  std::vector<std::unique_ptr<WorkerProcess>> workers_;  // null once it was killed
};

}  // namespace kvcake
