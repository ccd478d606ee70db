// What tests of the searches for splits share.
#pragma once

#include "cake/planner.h"

namespace kvcake::testing_util {

// Exact numbers: no promise of a gain is asked for.
inline constexpr PlannerOptions kExact = {.compute_gain_min = 0,
                                          .compute_gain_min_waiting = 0,
                                          .compute_gain_min_s = 0,
                                          .take_over_margin_chunks = 0};

}  // namespace kvcake::testing_util
