// The workers that prefill a server's long prompts with it: connected, and, once they are lost,
// connected again; meanwhile the server is alone.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "app/local_workers.h"
#include "app/rank_meeting.h"
#include "base/mutex.h"
#include "comm/comm.h"
#include "comm/tcp_join.h"
#include "engine/runtime.h"
#include "runahead/chain.h"
#include "server/engine_loop.h"
#include "server/server_metrics.h"

namespace kvcake {

struct ChainFlags {
  RankFlags ranks;                   // of more than one, the others are started here
  std::vector<std::string> workers;  // "host:port"
};
// --ranks, --workers, and what else there is to say of a server's ranks.
void AddChainFlags(CLI::App& app, ChainFlags* flags);

class ChainLink {
 public:
  // Empty where the flags name nobody. Else `options` is left with this process's share of the
  // machine, and workers of this machine are being started, with what `command` was given.
  static Result<std::unique_ptr<ChainLink>> Start(const ChainFlags& flags, const CLI::App& command,
                                                  RuntimeOptions* options);
  // End, if that has not been.
  ~ChainLink();

  // ---- the engine thread
  // Before the loop runs; borrows both until End. Workers that are not there are tried again every
  // few seconds. An error: there are some, which can never work with this server.
  Status Lead(Runtime& runtime, EngineLoop& loop);
  // When the loop has ended: lets the workers go.
  void End();

  // Any thread.
  ChainStats Stats() const;

 private:
  explicit ChainLink(const ChainFlags& flags) : flags_(flags) {}
  // Whether nobody else can be one of the ranks: they have the key or a certificate, or inherited
  // their sockets.
  bool authenticated() const { return flags_.workers.empty() || join_.authenticated(); }

  // Workers that have met.
  struct Chain {
    std::unique_ptr<Comm> comm;
    std::unique_ptr<ChainPlanner> planner;
  };

  // The thread's.
  void Run() EXCLUDES(mutex_);
  Result<std::unique_ptr<Comm>> Gather(const std::stop_token& stop);
  Result<Chain> Connect();
  Result<Chain> ConnectAgain();

  // The engine thread's.
  void HandOver() EXCLUDES(mutex_);
  void Drop() EXCLUDES(mutex_);
  void Unlead() EXCLUDES(mutex_);

  // Any thread: the first one of a chain counts.
  void Lost(const Error& error) EXCLUDES(mutex_);

  // Constant once Lead has been called.
  const ChainFlags flags_;
  JoinOptions join_;
  std::vector<int> cpus_;  // of this process, before it was pinned
  Runtime* runtime_ = nullptr;
  EngineLoop* loop_ = nullptr;

  // Owned by the engine thread.
  Chain chain_;
  std::unique_ptr<ChainLeader> leader_;

  // Owned by the thread, while it runs; null where workers are elsewhere.
  std::unique_ptr<LocalWorkers> local_;

  mutable Mutex mutex_;
  CondVar changed_;
  std::optional<Chain> next_ GUARDED_BY(mutex_);  // the engine's to take
  bool leading_ GUARDED_BY(mutex_) = false;       // the engine has a chain
  std::optional<Error> lost_ GUARDED_BY(mutex_);  // why it is of no use any more
  ChainStats stats_ GUARDED_BY(mutex_);

  std::stop_source stop_;
  std::thread thread_;
};

}  // namespace kvcake
