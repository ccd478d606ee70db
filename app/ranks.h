// The processes that prefill one prompt together: kvcake run --ranks P, which starts workers as a
// server does, or mpirun -n P kvcake run.
#pragma once

#include <functional>
#include <memory>

#include "app/local_workers.h"
#include "app/rank_meeting.h"
#include "comm/mpi_comm.h"
#include "engine/runtime.h"
#include "runahead/chain.h"

namespace kvcake {

// Where --ranks asks for more processes than this one: becomes the mpirun that starts them, each
// with this process's command line. Returns an error, or when this is one of them, or all there is.
// For commands that measure ranks as mpirun runs them.
[[nodiscard]] Status StartRanks(const RankFlags& flags);

// A rank of several.
class Ranks {
 public:
  // One of those that mpirun has started. Empty when this process is alone.
  static Result<std::unique_ptr<Ranks>> Join(const RankFlags& flags);
  // The leader of workers that Divide starts, with what `command` was given.
  static std::unique_ptr<Ranks> WithWorkers(const RankFlags& flags, const CLI::App& command);

  // The last: it reads the prompt, answers and prints.
  bool leads() const { return session_ == nullptr || session_->rank() + 1 == session_->size(); }
  // What is this rank's of the machine, where nothing else was asked for.
  Status Divide(RuntimeOptions* options);

  // Once they have met.
  Comm& comm() { return *comm_; }
  // What the leader knows of all ranks, once they have met.
  const Survey& survey() const { return survey_; }

  // MeetRanks, with the patience of a start.
  Status Meet(Runtime& runtime);
  // That, and, of all but the leader: works until it lets go.
  Status Work(Runtime& runtime);
  // That, and, of the leader: its engine gives long prompts to all.
  Status Lead(Runtime& runtime);
  // Ends this process with `status` if that, or another rank, is in the way of a quiet end.
  void End(int status);

 private:
  explicit Ranks(const RankFlags& flags) : flags_(flags) {}
  void EndNow(const Error& error);

  const RankFlags flags_;
  std::vector<std::string> worker_flags_;  // of those that it starts
  std::unique_ptr<LocalWorkers> local_;    // or:
  std::unique_ptr<MpiSession> session_;
  std::unique_ptr<Comm> comm_;
  Survey survey_;
  std::unique_ptr<ChainPlanner> planner_;
  std::unique_ptr<ChainLeader> leader_;
};

// Starts the ranks, and runs `body` on each; the exit code. An error where there is only one.
int RunOnRanks(const RankFlags& flags, const std::function<Status(Ranks&)>& body);

}  // namespace kvcake
