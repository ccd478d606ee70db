// The processes that prefill one prompt together: kvcake run --ranks P, or mpirun -n P kvcake run.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "comm/mpi_comm.h"
#include "comm/survey.h"
#include "engine/runtime.h"
#include "runahead/chain.h"
#include "runahead/chain_cost.h"
#include "runahead/partition_table.h"

namespace kvcake {

struct RankFlags {
  int ranks = 1;
  std::string partition = "analytic";
  std::string partition_table = {};                  // empty: DefaultPartitionTable()
  std::optional<double> link_rate_bytes_per_s = {};  // instead of what is measured
  std::optional<double> link_latency_s = {};
  double timeout_s = 30;
  int tokens_max = 16384;  // RuntimeOptions::rank_tokens_max
};
void AddRankFlags(CLI::App& app, RankFlags* flags);
// --partition-table, of commands that make one too.
void AddPartitionTableFlag(CLI::App& app, std::string* path);
// Of this user.
std::string DefaultPartitionTable();

// Measures what whole prompts are predicted by, unless that is known.
[[nodiscard]] Status WarmUpFar(Runtime& runtime);
// Of a slice in this process: by what it has measured, or its profile.
SliceTime SliceTimeOf(Runtime& runtime);
// So many ranks like this process.
ChainCost ChainCostOf(Runtime& runtime, int ranks, const LinkCost& link);

// Where --ranks asks for more processes than this one: becomes the mpirun that starts them, each
// with this process's command line. Returns an error, or when this is one of them, or all there is.
[[nodiscard]] Status StartRanks(const RankFlags& flags);

// A rank of several.
class Ranks {
 public:
  // Empty when this process is alone.
  static Result<std::unique_ptr<Ranks>> Join(const RankFlags& flags);

  // The last: it reads the prompt, answers and prints.
  bool leads() const { return comm_->rank() + 1 == comm_->size(); }
  // What is this rank's of the machine, where nothing else was asked for.
  void Divide(RuntimeOptions* options) const;

  Comm& comm() { return *comm_; }
  // Of the leader, once they have met. From each rank to the next, as measured or told by flags.
  LinkCost link() const;
  PartitionTableKey table_key(Runtime& runtime) const;

  // Checks that all ranks run the same, and measures the links between them.
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
  Result<std::unique_ptr<ChainPlanner>> NewPlanner(Runtime& runtime) const;
  std::string SpeedsPath(Runtime& runtime) const;

  const RankFlags flags_;
  std::unique_ptr<MpiSession> session_;
  std::unique_ptr<Comm> comm_;
  Survey survey_;
  std::unique_ptr<ChainPlanner> planner_;
  std::unique_ptr<ChainLeader> leader_;
};

}  // namespace kvcake
