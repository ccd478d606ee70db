// kvcake worker: a rank that prefills long prompts with the servers that call it
// (docs/runahead.md).
#include <fcntl.h>
#include <fmt/core.h>
#include <pthread.h>
#include <signal.h>
#include <spdlog/spdlog.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <memory>
#include <stop_token>
#include <thread>

#include "app/flags.h"
#include "app/log_format.h"
#include "app/rank_meeting.h"
#include "app/worker_process.h"
#include "comm/local_join.h"
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

// Waits for a leader, until `stop` is asked for.
using AwaitChain = std::function<Result<JoinedChain>(const std::stop_token&)>;

void WorkUntil(const std::stop_token& stop, const AwaitChain& await, Runtime& runtime,
               Seconds timeout) {
  while (!stop.stop_requested()) {
    const auto chain = await(stop);
    if (!chain) {
      if (stop.stop_requested() || chain.error().code == ErrorCode::kNotFound) return;
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

// Where leaders are waited for.
struct Meeting {
  std::string name;  // what is printed for who has started this worker
  AwaitChain await;
};

Result<Meeting> MeetingOf(const WorkerFlags& flags) {
  if (flags.listen.starts_with(kInherited)) {
    const int control = std::atoi(flags.listen.c_str() + kInherited.size());
    if (fcntl(control, F_SETFD, FD_CLOEXEC) != 0) {
      return Fail(ErrorCode::kInvalidArgument,
                  "--listen {}: this worker has inherited no such "
                  "descriptor",
                  flags.listen);
    }
    const auto await = [control](const std::stop_token& stop) -> Result<JoinedChain> {
      ASSIGN_OR_RETURN(auto comm, AwaitLocalLeader(control, stop));
      return JoinedChain{std::move(comm), "the process that has started this worker"};
    };
    return Meeting{flags.listen, await};
  }
  ASSIGN_OR_RETURN(TcpListener opened, TcpListener::Open(flags.listen));
  const auto listener = std::make_shared<TcpListener>(std::move(opened));
  const std::string host = flags.listen.substr(0, flags.listen.rfind(':'));
  return Meeting{fmt::format("{}:{}", host, listener->port()),
                 [listener](const std::stop_token& stop) { return AwaitLeader(*listener, stop); }};
}

Status Work(const WorkerFlags& flags) {
  EndSignals signals;
  if (flags.parent != 0) RETURN_IF_ERROR(EndWith(flags.parent));
  UseLogFormat(flags.log_format);
  ASSIGN_OR_RETURN(const Meeting meeting, MeetingOf(flags));
  RuntimeOptions options = flags.runtime;
  options.rank_tokens_max = flags.ranks.tokens_max;
  options.keep_costs = false;  // a worker's slices do not tell of whole prompts
  ASSIGN_OR_RETURN(const auto runtime, Runtime::Create(options));
  signals.Begin();
  spdlog::info("worker of {} waits for leaders at {}", flags.runtime.model_dir, meeting.name);
  fmt::print("{}\n", meeting.name);  // for who has started it
  std::fflush(stdout);
  WorkUntil(signals.token(), meeting.await, *runtime, Seconds(flags.ranks.timeout_s));
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
  worker->add_option("--parent", flags->parent)->group("");  // hidden: app/worker_process.cc
  RunWhenChosen(worker, Work, flags, exit_code);
}

}  // namespace kvcake
