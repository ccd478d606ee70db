// Steps of an engine over time, by what their tokens were for.
#pragma once

#include <string>
#include <vector>

#include "engine/engine.h"

namespace kvcake::bench {

struct StepPanel {
  std::string title;
  TimePoint began;        // of the time axis
  double restored_s = 0;  // when the restored prompt had its first token
  std::vector<StepRecord> steps;
};

// One panel below the other, on the same axes.
std::string DrawSteps(const std::string& title, const std::vector<StepPanel>& panels);

}  // namespace kvcake::bench
