// How prompts are divided among the ranks of a chain, from what ranks have been seen to take.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "model/slice_time.h"
#include "runahead/chain.h"
#include "runahead/chain_cost.h"

namespace kvcake {

struct ChainPlannerOptions {
  // analytic: by the costs below, on as many ranks as pay; even; else ParsePartition's shares or
  // tokens: on all ranks, always.
  std::string partition = "analytic";
  int chunk_tokens = 128;
  int layers = 1;
  double bytes_per_token_layer = 0;
  LinkCost link = {};
  // What a slice takes on the leader, as it is known by now; b = 0: nothing is.
  std::function<SliceTime()> time;
};

// kInvalidArgument names --partition.
Result<std::unique_ptr<ChainPlanner>> NewChainPlanner(ChainPlannerOptions options);

}  // namespace kvcake
