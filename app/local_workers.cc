#include "app/local_workers.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/cpu.h"
#include "comm/local_join.h"
#include "ops/visible_devices.h"

namespace kvcake {

Result<std::unique_ptr<LocalWorkers>> LocalWorkers::Start(int ranks,
                                                          std::vector<std::string> worker_flags,
                                                          RuntimeOptions* options) {
  const std::vector<int> cpus = options->cpus;
  if (!cpus.empty() && static_cast<int>(cpus.size()) < ranks) {
    return Fail(ErrorCode::kInvalidArgument, "--cpu-list has {} CPUs for {} ranks: give each one",
                cpus.size(), ranks);
  }
  std::erase_if(worker_flags, [](const auto& flag) { return flag.starts_with("--cpu-list="); });
  const bool choose_devices = OnCuda(options->path) && options->cuda_device.empty();
  if (options->threads == 0 && cpus.empty()) {
    options->threads = std::max(1, UsableCores() / ranks);
    worker_flags.push_back(fmt::format("--threads={}", options->threads));
  }
  std::unique_ptr<LocalWorkers> local(new LocalWorkers());
  for (int rank = 0; rank < ranks; ++rank) {
    const auto begin = cpus.begin() + cpus.size() * rank / ranks;
    const std::vector<int> own(begin, cpus.begin() + cpus.size() * (rank + 1) / ranks);
    const std::string device = choose_devices ? VisibleDevice(rank) : "";
    if (rank + 1 == ranks) {
      options->cpus = own;
      if (choose_devices) options->cuda_device = device;
      break;
    }
    std::vector<std::string>& flags = local->flags_.emplace_back(worker_flags);
    if (choose_devices) flags.push_back("--cuda-device=" + device);
    if (!own.empty()) flags.push_back(fmt::format("--cpu-list={}", fmt::join(own, ",")));
    ASSIGN_OR_RETURN(auto worker, WorkerProcess::Start(flags));
    local->workers_.push_back(std::move(worker));
  }
  return local;
}

Result<std::unique_ptr<Comm>> LocalWorkers::Connect(const std::stop_token& stop) {
  std::vector<int> controls;
  for (const auto& worker : workers_) {
    RETURN_IF_ERROR(worker->AwaitReady(stop));
    controls.push_back(worker->control());
  }
  return GatherLocalWorkers(controls);
}

Status LocalWorkers::Restart() {
  for (size_t i = 0; i < workers_.size(); ++i) {
    if (workers_[i] && !workers_[i]->Ended()) continue;
    ASSIGN_OR_RETURN(workers_[i], WorkerProcess::Start(flags_[i]));
  }
  return {};
}

void LocalWorkers::KillAll() {
  for (auto& worker : workers_) {
    if (worker) worker->Kill();
    worker.reset();
  }
}

}  // namespace kvcake
