// The last plan that was made for a prompt, kept as long as it holds.
#pragma once

#include <cstdint>

#include "base/clock.h"
#include "cake/claims.h"
#include "cake/load_queue.h"
#include "cake/planner.h"

namespace kvcake {

// What a plan rests on beside rates, which it follows at its own pace.
struct PlanBasis {
  uint64_t revision = 0;       // of the claims
  uint32_t usable = 0;         // bit t: tier t may be asked
  uint32_t known = 0;          // bit t: its speed is known
  bool compute_known = false;  // what slices take
  bool computed = false;       // the engine has compute for this document
  int share_eighths = 0;       // of a step, for this prompt

  bool operator==(const PlanBasis&) const = default;
};

struct HeldPlan {
  Plan plan;
  LoadQueue loads;
  PlanBasis basis;
  // Where compute was, and who owned the chunk there.
  int first_missing = 0;
  ChunkState first_state = ChunkState::kAbsent;
  TimePoint made{};
};

}  // namespace kvcake
