// Ranks of a machine that is not here: threads of this process, each with an EmulatedModel and
// pages of its own, and links between them that are as slow as the machine's.
#pragma once

#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "bench/rank_trial.h"
#include "comm/link_noise.h"
#include "model/emulated.h"
#include "runahead/chain_cost.h"

namespace kvcake::bench {

struct EmulatedRanksOptions {
  EmulatedProfile profile;
  int ranks = 2;
  LinkCost link = {};  // of the emulated machine
  LinkNoise noise = {};
  std::vector<double> speeds = {};  // of each rank; empty: 1
  int tokens_max = 16384;           // of a prompt
  // Compute, links and noise take so many times longer, and are reported as if they did not: what
  // this machine's few cores take for many ranks' messages weighs less by as much.
  double slow_motion = 1;
  // Called by each rank after its forward pass, on its thread. May be empty.
  std::function<void(int rank, const RankJob&, const KvGate&)> on_done = {};
};

class EmulatedRanks {
 public:
  // Fewer messages than the engine's 128 would have: all ranks share this machine's cores.
  static constexpr int kChunkTokens = 512;

  explicit EmulatedRanks(EmulatedRanksOptions options);
  // Lets the workers go.
  ~EmulatedRanks();
  EmulatedRanks(const EmulatedRanks&) = delete;
  EmulatedRanks& operator=(const EmulatedRanks&) = delete;

  RankTrial& trial() { return *trial_; }
  // What planners know of these ranks: their speeds too.
  const ChainCost& cost() const { return cost_; }

 private:
  struct Rank {
    std::unique_ptr<PagePool> pool;
    std::unique_ptr<EmulatedModel> model;
    std::unique_ptr<Comm> comm;
  };

  const EmulatedRanksOptions options_;
  ChainCost cost_;
  std::vector<Rank> ranks_;
  std::unique_ptr<RankTrial> trial_;
  std::vector<std::thread> workers_;
};

}  // namespace kvcake::bench
