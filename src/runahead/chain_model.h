// When everything in a chain happens, predicted from its costs: KV-Runahead's dependencies exactly,
// and those of its two baselines.
//
// A rank starts its prompt at 0 and works layer after layer: QKV, then attention once the KV of all
// tokens before its own has come, then the MLP. Between neighbours KV goes in pieces, one for the
// tokens of each rank at each layer: a piece is passed on as soon as it has come, a rank's own is
// sent as soon as it exists. A link sends one piece after the other in that order, and never keeps
// compute waiting.
#pragma once

#include <vector>

#include "runahead/chain_cost.h"
#include "runahead/partition.h"

namespace kvcake {

// Seconds since the chain began.
struct LayerTimes {
  double begin_s = 0;   // QKV starts
  double kv_s = 0;      // this rank's KV of the layer exists
  double prefix_s = 0;  // all that attention needs from others is there; 0 when it needs nothing
  double end_s = 0;
};

// A piece on the link to the next rank.
struct SendTimes {
  int layer = 0;
  int origin = 0;  // whose tokens
  double begin_s = 0, end_s = 0;
};

struct RankTimes {
  std::vector<LayerTimes> layers;
  std::vector<SendTimes> sends;  // in order; empty where an all-gather sends
  double compute_s = 0;
  double wait_s = 0;
  double sent_bytes = 0;

  double end_s() const { return layers.back().end_s; }
};

struct ChainTimes {
  std::vector<RankTimes> ranks;
  double ttft_s = 0;      // the rank with the last token has computed it
  double bound_s = 0;     // the slowest rank with every receive satisfied already
  double sent_bytes = 0;  // over all links
};

// KV-Runahead. The partition has as many parts as the cost has ranks. O(ranks^2 layers).
ChainTimes PredictChain(const ChainCost& cost, const Partition& partition);

// kTsp: an even split; at every layer all ranks gather K and V of all tokens, then each attends
// over all of them. kZigzag: 2p even parts of which rank i has number i and 2p-1-i. Causal
// attention skips masked tiles in both; dense computes every row against every key.
enum class GatherMethod { kTsp, kZigzag };

// The gather is a ring: it starts when the last rank has its K and V, and takes p-1 steps of the
// largest part. At least a token per part.
ChainTimes PredictGather(const ChainCost& cost, int tokens, GatherMethod method);

}  // namespace kvcake
