// One prompt through several ranks, measured on the leader.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/status.h"
#include "comm/comm.h"
#include "kv/page_pool.h"
#include "model/model.h"
#include "runahead/chain.h"

namespace kvcake::bench {

struct RankRun {
  double ttft_s = 0;
  int32_t token = 0;          // the logits' best, whatever the method
  double compute_most_s = 0;  // of the slowest rank
  uint64_t sent_bytes = 0;
  std::vector<RankReport> ranks = {};  // in order
};

struct RankTrialOptions {
  ChainOptions chain = {};
  bool dense = false;  // RankJob::dense
  // The ranks are so many times slower than what they stand for: all seconds are reported divided
  // by it.
  double slow_motion = 1;
  // What a slice of one process took; may be empty.
  std::function<void(int start, int tokens, Seconds took)> on_slice = {};
  // Called by the leader, as ChainWorker::on_done.
  std::function<void(const RankJob&, const KvGate&)> on_done = {};
};

class RankTrial {
 public:
  // Borrows all, on the leader, while the other ranks work (WorkForChain).
  RankTrial(Model& model, PagePool& pool, Comm& comm, RankTrialOptions options = {})
      : model_(model),
        pool_(pool),
        chain_(comm, pool, options.chain),
        options_(std::move(options)) {}

  int ranks() const { return chain_.ranks(); }
  const KvLayout& layout() const { return pool_.layout(); }
  int vocab_size() const { return model_.vocab_size(); }

  // By this process alone, in slices as the engine computes it; dense: in as few as it can.
  Result<RankRun> Single(const std::vector<int32_t>& prompt);
  // By all ranks. Without exchange nothing is sent: what compute alone takes.
  Result<RankRun> Several(const std::vector<int32_t>& prompt, RankMethod method,
                          const Partition& partition, bool exchange = true);
  // The median TTFT of a chain with this partition, in seconds.
  Result<double> ChainSeconds(const std::vector<int32_t>& prompt, const Partition& partition,
                              int repeats);

 private:
  Result<PageTable> Pages(size_t tokens);
  double Reported(Seconds took) const { return took.count() / options_.slow_motion; }

  Model& model_;
  PagePool& pool_;
  ChainLeader chain_;
  const RankTrialOptions options_;
};

}  // namespace kvcake::bench
