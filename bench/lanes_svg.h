// The picture of restorations: which tokens each lane made resident, and when.
#pragma once

#include <string>
#include <vector>

#include "cake/report.h"

namespace kvcake::bench {

// One panel a report, side by side on one time axis: time to the right, tokens upwards. Computed
// slices climb from the bottom, loaded chunks come down from the top; they meet.
std::string DrawLanes(const std::string& title, const std::vector<RestoreReport>& reports);

}  // namespace kvcake::bench
