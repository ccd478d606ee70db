// Steps that a restoration shares with requests made up to fill them: how the papers set the share
// of a GPU.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "engine/runtime.h"
#include "engine/step_budget.h"
#include "sim/compute_share.h"

namespace kvcake::bench {

// Restorations get a share of each step's tokens; others' prefill takes the rest, as far into a
// prompt as they are, so that a step lasts as long as a full one. Engine thread only.
class SharedSteps : public StepBudget {
 public:
  // Has the runtime's engine share its steps, before the first request and until this goes, which
  // is before the runtime does. `shares`: from 0 to 1, by the time since the first step. Holds as
  // many pages as a slice has chunks; kResourceExhausted names the flag when these are all.
  static Result<std::unique_ptr<SharedSteps>> Install(Runtime& runtime, SpeedTrace shares);
  // Null without shares: steps are as long as needed, and nobody takes part in them.
  static Result<std::unique_ptr<SharedSteps>> Install(Runtime& runtime,
                                                      const std::optional<SpeedTrace>& shares);
  ~SharedSteps() override;

  ComputeBudget ForRestorations(TimePoint now) override;
  std::optional<Slice> Fill(int position, int tokens) override;
  void Ran(TimePoint began, int chunks) override;
  uint64_t pages() const override { return pages_.size(); }

 private:
  SharedSteps(Runtime& runtime, SpeedTrace shares);
  double At(TimePoint t) const { return (t - *began_).count(); }

  Runtime& runtime_;
  const int chunk_tokens_;
  ComputeShare share_;
  std::optional<TimePoint> began_;  // the first call of ForRestorations, from which shares count
  std::vector<PageHandle> pages_;
  std::vector<PageId> table_;
  std::vector<int32_t> tokens_;
};

}  // namespace kvcake::bench
