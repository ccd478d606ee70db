// Several restorations at once, on a fake clock, sharing one link and one compute lane.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/simulator.h"

namespace kvcake::bench {

struct Crowd {
  ComputeFit compute;
  double chunk_s = 0;        // of the link
  std::vector<int> prompts;  // their chunks, all stored
};

// 2 to 8 prompts of 4 to 64 chunks of 128 tokens, load/compute 1/4 to 4; the same for the same
// seed.
Crowd RandomCrowd(uint64_t seed);

// The least time in which all chunks of these prompts can be made, whichever lane makes them.
double LeastTotal(const Crowd& crowd, const std::vector<int>& prompts);

struct CrowdTimes {
  double total_s = 0;  // until the last is restored
  double mean_s = 0;   // of each prompt
};
// No order can do better in either: k prompts are not done before the k shortest could be.
CrowdTimes LeastTimes(const Crowd& crowd);
// All arrive at once.
CrowdTimes RunCrowd(const Crowd& crowd, LoadOrder order);

}  // namespace kvcake::bench
