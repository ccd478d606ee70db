// What the ranks of a chain have in common, started by mpirun (app/ranks.h) or called by a server
// (app/chain_link.h): their flags, how they meet, what workers do, how the leader plans.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/handshake.h"
#include "comm/rank_tls.h"
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
  std::string cluster_key_file = {};
  RankTlsFiles tls = {};
};
void AddRankFlags(CLI::App& app, RankFlags* flags);
// Add some of them: --ranks; --partition, and what it goes by; --rank-timeout and
// --rank-tokens-max.
void AddRankCountFlag(CLI::App& app, RankFlags* flags);
void AddPartitionFlags(CLI::App& app, RankFlags* flags);
void AddRankLimitFlags(CLI::App& app, RankFlags* flags);
// Warns of flags of AddPartitionFlags that a command was given which has no ranks.
void WarnOfPartitionFlags(const CLI::App& command);
// --cluster-key-file and --tls-..., of ranks that meet over TCP.
std::vector<CLI::Option*> AddClusterFlags(CLI::App& app, RankFlags* flags);
// --partition-table, of commands that make one too.
void AddPartitionTableFlag(CLI::App& app, std::string* path);
// The file that this user's partitions are in unless --partition-table names another.
std::string DefaultPartitionTable();

// What must be the same on every rank.
std::vector<Fact> FactsOf(Runtime& runtime);

// Whether all ranks of `comm` run the same; every rank calls it once, first. The leader learns of
// the ranks and their links. kInvalidArgument names what differs.
[[nodiscard]] Result<Survey> MeetRanks(Comm& comm, Runtime& runtime, Seconds timeout);
struct WorkOptions {
  Seconds timeout{30};           // ChainOptions::timeout
  Seconds restore_timeout{600};  // ChainOptions::restore_timeout
  bool authenticated = false;    // ChainOptions::authenticated
  // Asked while it restores a prompt: why that is of no use any more. Closing the Comm ends the
  // rest.
  std::function<Status()> still_wanted = {};
};
// A worker's: works until the leader lets go. An error is why it could not; `comm` is closed then.
[[nodiscard]] Status WorkForLeader(Comm& comm, Runtime& runtime, const WorkOptions& options);

// ---- the leader
// From each rank to the next, as flags tell or as measured.
LinkCost LinkOf(const RankFlags& flags, const Survey& survey);
PartitionTableKey TableKeyOf(Runtime& runtime, const Survey& survey);
// By what its runtime, which is borrowed, learns. kNotFound says how to make a missing table.
Result<std::unique_ptr<ChainPlanner>> PlannerFor(Runtime& runtime, const RankFlags& flags,
                                                 const Survey& survey);
// Measures what whole prompts are predicted by, unless that is known.
[[nodiscard]] Status WarmUpFar(Runtime& runtime);

}  // namespace kvcake
