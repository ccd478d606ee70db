// What the work of a chain's ranks and its links cost: numbers only, from a fit or a profile.
#pragma once

#include <cmath>
#include <limits>
#include <vector>

#include "kv/slice_time.h"
#include "model/emulated_profile.h"

namespace kvcake {

struct RankCost {
  SliceTime time;
  double t0_s = 0;   // what taking part in a chain adds, however short the part
  double speed = 1;  // 0.5 takes twice as long; > 0

  // The tokens [prefix, prefix + tokens) at every layer, without any waiting.
  double SecondsFor(double prefix, double tokens) const;
  // How many tokens after `prefix` it computes within so many seconds; not rounded, may be 0 or
  // infinite.
  double TokensWithin(double prefix, double seconds) const;
};

// A link from one rank to the next, which sends one message after the other.
struct LinkCost {
  double alpha_s = 0;  // of each message
  double bytes_per_s = std::numeric_limits<double>::infinity();

  double SecondsFor(double bytes) const { return alpha_s + bytes / bytes_per_s; }
  bool free() const { return alpha_s == 0 && std::isinf(bytes_per_s); }
};

struct ChainCost {
  std::vector<RankCost> ranks;  // in the order of the chain
  LinkCost link = {};           // of every neighbouring pair
  int layers = 1;
  double bytes_per_token_layer = 0;  // K and V of a token at one layer
  // A layer's KV exists once this share of its time that grows with the tokens alone (b x) has
  // passed: QKV is 0.25 of a Llama layer's weights. All the rest, fixed costs too, comes after.
  double qkv_share = 0.25;

  // The last `count` ranks, which end with the leader; one alone takes part in no chain and pays no
  // t0_s.
  ChainCost Last(int count) const;
  // Counts everything sent for one token, all layers.
  double bytes_per_token() const { return bytes_per_token_layer * layers; }
};

// So many equal ranks of the profile's machine, and links of its latency.
ChainCost ChainCostOf(const EmulatedProfile& profile, int ranks,
                      double link_bytes_per_s = LinkCost().bytes_per_s);

}  // namespace kvcake
