// One prompt through the ranks of this run, measured on the leader.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "comm/comm.h"
#include "engine/runtime.h"
#include "runahead/chain.h"

namespace kvcake::bench {

struct RankRun {
  double ttft_s = 0;
  int32_t token = 0;          // the logits' best, whatever the method
  double compute_most_s = 0;  // of the slowest rank
  uint64_t sent_bytes = 0;
  uint64_t peak_rss_bytes = 0;  // of the largest rank
};

class RankTrial {
 public:
  // Borrows both; on the leader, while the other ranks work (WorkForChain).
  RankTrial(Runtime& runtime, Comm& comm, const ChainOptions& options = {})
      : runtime_(runtime), chain_(comm, runtime.pool(), options) {}

  // By this process alone, in slices as the engine computes it; its compute cost learns from them.
  Result<RankRun> Single(const std::vector<int32_t>& prompt);
  // By all ranks. Without exchange nothing is sent: what compute alone takes.
  Result<RankRun> Several(const std::vector<int32_t>& prompt, RankMethod method,
                          const Partition& partition, bool exchange = true);

 private:
  Result<PageTable> Pages(size_t tokens);

  Runtime& runtime_;
  ChainLeader chain_;
};

}  // namespace kvcake::bench
