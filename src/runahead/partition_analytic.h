// Partitions computed from costs, in milliseconds (of dozens of ranks some tenths of a second),
// where KV-Runahead searches for hours by measuring.
#pragma once

#include <cstdint>
#include <vector>

#include "runahead/chain_cost.h"
#include "runahead/partition.h"

namespace kvcake {

// Parts whose ranks finish together and whose links keep up: in closed form for equal ranks, causal
// attention and free links, else by bisection on the common time. Ignores what ranks wait for
// within layers. tokens >= ranks.
Partition BalancedPartition(const ChainCost& cost, int tokens);

// What searches may still cost: messages between ranks that PredictChain follows, some 5 ns each. A
// search ends when none are left, at the best that it has found. One that is given no effort has
// all of this for itself.
struct Effort {
  int64_t messages = 10'000'000;
};

// Lowers PredictChain's time to the first token by moving bounds, one and several together, by
// `stride_tokens` doubled up to 1/16 of the prompt and back; never makes it longer. A bound that is
// a multiple of stride_tokens stays one.
Partition ImprovePartition(const ChainCost& cost, Partition partition, int stride_tokens = 1,
                           Effort* effort = nullptr);

// The best by PredictChain of EvenPartition and BalancedPartition, with the links and as if they
// were free; improved to within a step of 1/2048 of the prompt.
Partition AnalyticPartition(const ChainCost& cost, int tokens, Effort* effort = nullptr);

inline constexpr double kDearerMax = 0.01;

// With bounds that are multiples of chunk_tokens, unless PredictChain takes over `dearer_max`
// longer with the best of those found: then as it was.
Partition ChunkedPartition(const ChainCost& cost, const Partition& partition, int chunk_tokens,
                           double dearer_max = kDearerMax, Effort* effort = nullptr);

struct RanksOptions {
  int chunk_tokens = 1;
  // More ranks must be worth their trouble: with fewer the first token would come later by this
  // share at least.
  double gain_min = 0.03;
  Effort effort = {};  // of the search on all numbers of ranks together
};

struct RanksChoice {
  Partition partition;  // of the last partition.ranks() ranks
  double ttft_s = 0;
  std::vector<double> ttft_by_ranks_s;  // of 1, 2, ... ranks, each at its best partition
};

// How many of cost.ranks should compute a prompt of so many tokens: the last of them, in order.
RanksChoice BestRanks(const ChainCost& cost, int tokens, const RanksOptions& options = {});

}  // namespace kvcake
