// Which chunks compute should make and which the loads, for the least time until everything is
// resident.
#pragma once

#include <cstdint>
#include <vector>

#include "cake/planner.h"

namespace kvcake {

struct Splits {
  std::vector<Side> sides;    // per chunk; kCompute where nothing is to be loaded
  std::vector<int8_t> tiers;  // per chunk: the tier that loads it; -1: none, or no tier has it
  double finish_s = 0;        // when everything is resident
};

// Holes cut the prompt into segments: holes, then chunks that can be loaded. Compute makes the
// front of each segment and the loads its back, segment after segment; compute goes on behind the
// loads once they are there. Of all splits the best where one tier holds what can be loaded, a good
// one where several do. From chunk `first`, which is not resident. O(chunks) per segment.
Splits LeastFinish(const PlanInput& input, const PlannerOptions& options, int first);

}  // namespace kvcake
