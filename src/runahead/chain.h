// The prompts that several ranks prefill together (KV-Runahead). The last rank leads: it says who
// computes what, ends with the whole KV cache and answers; the others wait for its jobs.
#pragma once

#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "comm/comm.h"
#include "comm/survey.h"
#include "comm/wait.h"
#include "model/model.h"
#include "runahead/job.h"

namespace kvcake {

struct ChainOptions {
  Seconds timeout{30};           // without any progress, a rank is taken for lost
  Seconds restore_timeout{600};  // of every rank, for what is kept of a prompt's beginning
  // The most that a rank computes of a prompt, the same for all; their models may take more.
  int tokens_max = std::numeric_limits<int>::max();
  // Every rank is known to be one of ours: it has proved that it has the cluster's key, or nobody
  // else could be in its place. Else KV caches that came from others are used for the prompt that
  // they were asked for, and published under no key: a forger's would be in later answers.
  bool authenticated = false;
  KvStaging staging = {};  // where pages are a device's
  // Called once by the leader, with why the chain is lost, before it is closed. May be empty.
  std::function<void(const Error&)> on_lost = {};
};

// What a rank's part of a prompt took.
struct RankReport {
  double compute_s = 0;  // of the forward pass, waiting apart
  double wait_s = 0;     // for the KV cache of others
  uint64_t sent_bytes = 0;
  uint64_t peak_rss_bytes = 0;  // of its process since that began, not of this prompt alone
  uint64_t mixed_path = 0;      // 1: another numeric path than the rank's made some of the prefix
};

// Decides how prompts are divided.
class ChainPlanner {
 public:
  virtual ~ChainPlanner() = default;
  // Divides the tokens [origin, origin + tokens) into at most so many parts; empty: one process is
  // as fast.
  virtual std::optional<Partition> Plan(int origin, int tokens, int ranks) = 0;
  // Told once of each prompt, with what is done of it, one part where the leader computes it alone,
  // then only what follows `alone_from`: a rank that is left out of it for being slow is thought a
  // little faster from then on, and tried again in time.
  virtual void ForgetSlowness(int origin, const Partition& planned, int ranks, int alone_from) = 0;
  // What a job took: each part's rank, in order.
  virtual void Learn(const RankJob& job, std::span<const RankReport> ranks) = 0;
  // Whether a partition of what follows `origin` is expected to be worth the trouble, where the
  // leader alone would have to compute only what follows `alone_from`.
  virtual bool Pays(int origin, const Partition& partition, int alone_from) = 0;
  // Whether it goes by what surveys find of links, and what the newest has found.
  virtual bool learns_links() const = 0;
  virtual void LearnLinks(const Survey& survey) = 0;
};

// The leader's side. One prompt at a time, on one thread.
class ChainLeader {
 public:
  // Borrows all; `comm` has two ranks at least, and this is the last.
  ChainLeader(Comm& comm, const PagePool& pool, const ChainOptions& options);
  // Lets the others go.
  ~ChainLeader();
  ChainLeader(const ChainLeader&) = delete;
  ChainLeader& operator=(const ChainLeader&) = delete;

  int ranks() const { return comm_.size(); }
  // Once a prompt has failed the chain is gone: no job is taken any more.
  bool ok() const { return !lost_; }
  bool authenticated() const { return options_.authenticated; }
  int tokens_max() const { return options_.tokens_max; }  // of each rank

  // Between jobs: SurveyRanks by all ranks once more. An error is the chain's end.
  Result<Survey> SurveyLinks();
  // Between jobs: how many of these chunks, from the first on, each other one of the last `ranks`
  // ranks has or can load. An error is the chain's end.
  Result<int> KeptByLast(int ranks, std::span<const ChunkKey> keys);
  // Starts a job: the gate is that of this rank's slices (RangesOf its last place). `pages` cover
  // the job's tokens and stay drawn until End.
  Result<std::unique_ptr<KvGate>> Start(const RankJob& job, std::span<const PageId> pages);
  // After their forward pass, with its status: what the ranks before this one report, in
  // their order. An error is the chain's end.
  Result<std::vector<RankReport>> End(KvGate& gate, const Status& forward);

 private:
  Status Lose(Error error);

  Comm& comm_;
  const PagePool& pool_;
  const ChainOptions options_;
  bool lost_ = false;
  // Report on the job.
  std::vector<RankReport> reports_;
  TransferWait reported_;
};

// What a worker computes with.
struct ChainWorker {
  Model& model;
  PagePool& pool;
  // Has the pages of the job's first `origin` tokens published in the pool.
  std::function<Status(const RankJob&)> restore_prefix;
  ChainOptions options = {};
  // How many of a prompt's chunks, from the first on, restore_prefix need not compute. Empty: all.
  std::function<int(std::span<const ChunkKey>)> kept = {};
  // Called after each forward pass. May be empty.
  std::function<void(const RankJob&, const KvGate&)> on_done = {};
};

// Works for the leader until it lets go. An error is what made a job fail; the Comm is closed then.
[[nodiscard]] Status WorkForChain(Comm& comm, const ChainWorker& worker);

}  // namespace kvcake
