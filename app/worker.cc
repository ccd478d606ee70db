// kvcake worker: a rank that prefills long prompts with the servers that call it
// (docs/runahead.md).
#include <fmt/core.h>
#include <pthread.h>
#include <signal.h>
#include <spdlog/spdlog.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <stop_token>
#include <thread>

#include "app/flags.h"
#include "app/log_format.h"
#include "app/rank_meeting.h"
#include "comm/tcp_join.h"

namespace kvcake {
namespace {

struct WorkerFlags {
  RuntimeOptions runtime;
  RankFlags ranks;
  std::string listen;
  std::string log_format = "text";
  pid_t parent = 0;  // whose end is this process's; 0: nobody's
};

// SIGTERM and SIGINT: the first asks for a stop, or ends what has not begun; the second ends at
// once.
class EndSignals {
 public:
  // Before any other thread is started.
  EndSignals() {
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    pthread_sigmask(SIG_BLOCK, &signals, nullptr);
    std::thread([signals, begun = begun_, stop = stop_]() mutable {
      int signal;
      sigwait(&signals, &signal);
      if (!*begun) std::_Exit(0);
      stop.request_stop();
      sigwait(&signals, &signal);
      std::_Exit(1);
    }).detach();
  }
  void Begin() { *begun_ = true; }
  std::stop_token token() const { return stop_.get_token(); }

 private:
  const std::shared_ptr<std::atomic<bool>> begun_ = std::make_shared<std::atomic<bool>>(false);
  std::stop_source stop_;
};

// Killed when it is, whatever has happened to either.
Status EndWith(pid_t parent) {
  prctl(PR_SET_NAME, "kvcake-worker");  // it was started as /proc/self/exe
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() == parent) return {};
  return Fail(ErrorCode::kCancelled, "the server that has started this worker is gone");
}

Status WorkFor(Comm& comm, Runtime& runtime, Seconds timeout, const std::stop_token& stop) {
  const std::stop_callback closes(stop, [&] {
    comm.Close({ErrorCode::kCancelled, "this worker is told to stop"});
  });
  RETURN_IF_ERROR(MeetRanks(comm, runtime, timeout).map([](auto) {}));
  return WorkForLeader(comm, runtime, timeout, [&] { return stop.stop_requested(); });
}

void WorkUntil(const std::stop_token& stop, const TcpListener& listener, Runtime& runtime,
               Seconds timeout) {
  while (!stop.stop_requested()) {
    const auto chain = AwaitLeader(listener, stop);
    if (!chain) {
      if (stop.stop_requested()) return;
      spdlog::warn("a leader has called in vain: {}", chain.error().message);
      continue;
    }
    spdlog::info("rank {} of {}, led from {}", chain->comm->rank(), chain->comm->size(),
                 chain->leader);
    if (const Status status = WorkFor(*chain->comm, runtime, timeout, stop); status) {
      spdlog::info("the leader at {} has let this worker go", chain->leader);
    } else {
      spdlog::warn("no more led from {}: {}", chain->leader, status.error().message);
    }
  }
}

Status Work(const WorkerFlags& flags) {
  EndSignals signals;
  if (flags.parent != 0) RETURN_IF_ERROR(EndWith(flags.parent));
  UseLogFormat(flags.log_format);
  ASSIGN_OR_RETURN(const TcpListener listener, TcpListener::Open(flags.listen));
  RuntimeOptions options = flags.runtime;
  options.rank_tokens_max = flags.ranks.tokens_max;
  options.keep_costs = false;  // a worker's slices do not tell of whole prompts
  ASSIGN_OR_RETURN(const auto runtime, Runtime::Create(options));
  signals.Begin();
  const std::string host = flags.listen.substr(0, flags.listen.rfind(':'));
  const std::string address = fmt::format("{}:{}", host, listener.port());
  spdlog::info("worker of {} waits for leaders at {}", flags.runtime.model_dir, address);
  fmt::print("{}\n", address);  // for who has started it
  std::fflush(stdout);
  WorkUntil(signals.token(), listener, *runtime, Seconds(flags.ranks.timeout_s));
  return {};
}

}  // namespace

void AddWorkerCommand(CLI::App& app, int* exit_code) {
  auto flags = std::make_shared<WorkerFlags>();
  CLI::App* worker = app.add_subcommand(
      "worker", "prefill a part of long prompts for kvcake serve --workers, on any machine");
  worker
      ->add_option("--listen", flags->listen,
                   "HOST:PORT where servers call; port 0: one that is free. It is printed when "
                   "they may. Whoever reaches it is obeyed: only in networks that are trusted")
      ->required();
  AddRuntimeFlags(*worker, &flags->runtime);
  worker->add_option("--emulate", flags->runtime.emulate, "as kvcake serve --emulate");
  AddRankLimitFlags(*worker, &flags->ranks);
  AddLogFormatFlag(*worker, &flags->log_format);
  AddLogLevelFlag(*worker);
  worker->add_option("--parent", flags->parent)->group("");  // hidden: app/worker_process.cc
  RunWhenChosen(worker, Work, flags, exit_code);
}

}  // namespace kvcake
