// What a chain's ranks are expected to take, by what this process has measured, or its profile.
#pragma once

#include "engine/runtime.h"
#include "runahead/chain_cost.h"

namespace kvcake {

// Of a slice in this process.
SliceTime SliceTimeOf(Runtime& runtime);
// So many ranks like this process.
ChainCost ChainCostOf(Runtime& runtime, int ranks, const LinkCost& link);

}  // namespace kvcake
