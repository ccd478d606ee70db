// What a chain's ranks are expected to take, by what this process has measured, or its profile.
#pragma once

#include "engine/runtime.h"
#include "runahead/chain_cost.h"
#include "runahead/chain_planner.h"

namespace kvcake {

// What a slice costs in this process.
SliceTime SliceTimeOf(Runtime& runtime);
// So many ranks like this process.
ChainCost ChainCostOf(Runtime& runtime, int ranks, const LinkCost& link);
// For a chain of such ranks; borrows the runtime.
ChainPlannerOptions PlannerOptionsOf(Runtime& runtime, const LinkCost& link);

}  // namespace kvcake
