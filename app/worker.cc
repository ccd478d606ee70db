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

#include "app/config_file.h"
#include "app/flags.h"
#include "app/log_format.h"
#include "app/rank_meeting.h"
#include "app/worker_process.h"
#include "base/mutex.h"
#include "comm/local_join.h"
#include "comm/tcp_join.h"
#include "comm/watch.h"

namespace kvcake {
namespace {

struct WorkerFlags {
  RuntimeOptions runtime;
  RankFlags ranks;
  std::string listen;
  std::string log_format = "text";
  pid_t parent = 0;  // whose end is this process's; 0: nobody's
};

// SIGTERM and SIGINT: the first asks for a stop, or ends what has not begun; SIGINT after it ends
// at once.
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
      do {
        sigwait(&signals, &signal);
      } while (signal != SIGINT);
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

// Where leaders are waited for.
class Meeting {
 public:
  static Result<Meeting> Open(const WorkerFlags& flags) {
    Meeting meeting;
    if (flags.listen.starts_with(kInherited)) {
      RETURN_IF_ERROR(meeting.Inherit(flags.listen));
    } else {
      RETURN_IF_ERROR(meeting.Listen(flags));
    }
    return meeting;
  }

  // As it is printed for who has started this worker.
  const std::string& name() const { return name_; }
  bool authenticated() const { return !listener_ || options_.authenticated(); }

  // What is asked of it: a server gives its ranks no longer to restore than for anything else.
  WorkOptions work(Seconds timeout) const {
    WorkOptions work{.timeout = timeout, .authenticated = authenticated()};
    if (listener_) work.restore_timeout = timeout;
    return work;
  }

  // While it has this leader: none other is left waiting.
  void Decline(const std::stop_token& stop, const std::string& leader) const {
    if (listener_) DeclineLeaders(*listener_, stop, options_, leader);
  }

  // For what goes well, of which who has started this worker tells.
  spdlog::level::level_enum log_level() const {
    return listener_ ? spdlog::level::info : spdlog::level::debug;
  }

  // kNotFound: none will come any more.
  Result<JoinedChain> Await(const Digest& facts, const std::stop_token& stop) const {
    if (listener_) {
      JoinOptions options = options_;
      options.facts = facts;
      return AwaitLeader(*listener_, stop, options);
    }
    ASSIGN_OR_RETURN(auto comm, AwaitLocalLeader(control_, stop));
    return JoinedChain{std::move(comm), "the process that has started this worker"};
  }

 private:
  Status Inherit(const std::string& listen) {
    control_ = std::atoi(listen.c_str() + kInherited.size());
    name_ = listen;
    if (fcntl(control_, F_SETFD, FD_CLOEXEC) == 0) return {};
    return Fail(ErrorCode::kInvalidArgument, "--listen {}: no such descriptor is inherited",
                listen);
  }

  Status Listen(const WorkerFlags& flags) {
    ASSIGN_OR_RETURN(options_.key, ClusterKey::Load(flags.ranks.cluster_key_file));
    ASSIGN_OR_RETURN(options_.tls, RankTls::Load(flags.ranks.tls));
    ASSIGN_OR_RETURN(TcpListener opened, TcpListener::Open(flags.listen));
    listener_ = std::make_unique<TcpListener>(std::move(opened));
    const std::string host = flags.listen.substr(0, flags.listen.rfind(':'));
    name_ = fmt::format("{}:{}", host, listener_->port());
    if (options_.authenticated() || listener_->loopback()) return {};
    return Fail(
        ErrorCode::kInvalidArgument,
        "--listen {}: without a cluster key, or TLS, a worker listens at loopback addresses only, "
        "as whoever reaches it could have it compute, and connect, for them and forge "
        "prompts' KV caches: {}",
        flags.listen, kClusterKeyRemedy);
  }

  std::string name_;
  JoinOptions options_;
  std::unique_ptr<TcpListener> listener_;  // null: inherited
  int control_ = -1;
};

// What is noted on a thread of the Comm's, and read on the engine's.
class Loss {
 public:
  void Note(const Error& why) {
    MutexLock lock(mutex_);
    status_ = tl::unexpected(why);
  }
  Status status() const {
    MutexLock lock(mutex_);
    return status_;
  }

 private:
  mutable Mutex mutex_;
  Status status_ GUARDED_BY(mutex_);
};

// Calls `met` once the ranks run the same.
Status WorkFor(Comm& comm, Runtime& runtime, WorkOptions options, const std::stop_token& stop,
               const std::function<void()>& met) {
  const std::stop_callback closes(stop, [&] {
    comm.Close({ErrorCode::kCancelled, "this worker is told to stop"});
  });
  RETURN_IF_ERROR(MeetRanks(comm, runtime, options.timeout).map([](auto) {}));
  met();
  // Nothing is sent or received while it restores that would tell that the leader has gone: which
  // goes where one is lost that the prompt needs.
  const auto lost = std::make_shared<Loss>();
  WatchPeer(comm, comm.size() - 1, [lost](const Error& why) { lost->Note(why); });
  options.still_wanted = [lost] { return lost->status(); };
  return WorkForLeader(comm, runtime, options);
}

void WorkUntil(const std::stop_token& stop, const Meeting& meeting, Runtime& runtime,
               Seconds timeout) {
  const Digest facts = FactsDigest(FactsOf(runtime));
  const WorkOptions options = meeting.work(timeout);
  std::string told;  // since a leader was met: servers call in vain every few seconds
  const auto warn = [&told](const std::string& what, const Error& why) {
    if (why.message == told) return;
    told = why.message;
    spdlog::warn("{}: {}", what, told);
  };
  while (!stop.stop_requested()) {
    const auto chain = meeting.Await(facts, stop);
    if (!chain) {
      if (stop.stop_requested() || chain.error().code == ErrorCode::kNotFound) return;
      warn("a leader has called in vain", chain.error());
      continue;
    }
    const auto met = [&] {
      told.clear();
      spdlog::log(meeting.log_level(), "rank {} of {}, led from {}", chain->comm->rank(),
                  chain->comm->size(), chain->leader);
    };
    const std::jthread declines(
        [&](const std::stop_token& ended) { meeting.Decline(ended, chain->leader); });
    if (const Status status = WorkFor(*chain->comm, runtime, options, stop, met); status) {
      spdlog::log(meeting.log_level(), "the leader at {} has let this worker go", chain->leader);
    } else if (stop.stop_requested() && status.error().code == ErrorCode::kCancelled) {
      // Asked for: by who has led it and is done, too, before the worker has heard that it is.
      spdlog::log(meeting.log_level(), "no more led from {}: this worker is told to stop",
                  chain->leader);
    } else {
      warn("no more led from " + chain->leader, status.error());
    }
  }
}

Status Work(const WorkerFlags& flags) {
  if (flags.runtime.model_dir.empty() && flags.runtime.emulate.empty()) {
    return Fail(ErrorCode::kInvalidArgument, "--model DIR is required");
  }
  EndSignals signals;
  if (flags.parent != 0) RETURN_IF_ERROR(EndWith(flags.parent));
  BeginLog(flags.log_format);
  ASSIGN_OR_RETURN(const Meeting meeting, Meeting::Open(flags));
  RuntimeOptions options = flags.runtime;
  options.rank_tokens_max = flags.ranks.tokens_max;
  options.keep_costs = false;  // a worker's slices do not tell of whole prompts
  ASSIGN_OR_RETURN(const auto runtime, Runtime::Create(options));
  signals.Begin();
  spdlog::log(meeting.log_level(), "worker of {} waits for leaders at {}", flags.runtime.model_dir,
              meeting.name());
  fmt::print("{}\n", meeting.name());  // for who has started it
  std::fflush(stdout);
  WorkUntil(signals.token(), meeting, *runtime, Seconds(flags.ranks.timeout_s));
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
                   "they may. Other than loopback addresses need --cluster-key-file or --tls-cert")
      ->required();
  AddConfigFlag(*worker);
  AddRuntimeFlags(*worker, &flags->runtime);
  worker->get_option("--model")->required(false);
  worker->add_option("--emulate", flags->runtime.emulate, "as kvcake serve --emulate");
  AddClusterFlags(*worker, &flags->ranks);
  AddRankLimitFlags(*worker, &flags->ranks);
  AddLogFormatFlag(*worker, &flags->log_format);
  AddLogLevelFlag(*worker);
  worker->add_option("--parent", flags->parent)->group("");  // hidden: app/worker_process.cc
  RunWhenChosen(worker, Work, flags, exit_code);
}

}  // namespace kvcake
