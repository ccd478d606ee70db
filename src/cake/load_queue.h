// What a plan leaves to each tier, in the order in which it is read.
#pragma once

#include <optional>
#include <vector>

#include "cake/claims.h"
#include "cake/planner.h"

namespace kvcake {

// From the back of the chunks before the first one that compute has to make, as compute waits there
// for all before it; then from the back of those up to the next one, and so on.
class LoadQueue {
 public:
  // The chunks that are absent now and that the plan does not leave to compute.
  LoadQueue(const Claims& claims, const Plan& plan, int tiers);
  // The first for this tier that is still absent. Takes O(1) over all calls.
  std::optional<int> Next(const Claims& claims, int tier);

 private:
  std::vector<std::vector<int>> chunks_;  // of each tier, the next one last
};

}  // namespace kvcake
