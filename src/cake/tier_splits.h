// Which chunks compute should make and which each tier should load, where tiers hold different
// ones.
#pragma once

#include <optional>

#include "cake/split_search.h"

namespace kvcake {

// Gives each set of tiers a split of its own: of the chunks that exactly these tiers hold, compute
// makes those before it, and the tiers load the others. So what only a slow tier has is computed
// while a fast one loads what lies between. Nothing where all chunks that can be loaded are held by
// the same tiers, or sets are many. A good choice, not the best: splits are looked for in steps of
// a 64th of what is left. From chunk `first`, which is not resident. O(chunks) for each set.
std::optional<Splits> LeastFinishBySets(const PlanInput& input, const PlannerOptions& options,
                                        int first);

}  // namespace kvcake
