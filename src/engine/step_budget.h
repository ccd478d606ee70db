// Who else wants the machine that restorations compute on. Without a budget nobody does: a step is
// as long as its sequences make it, and restorations get all that decodes and prompts leave. The
// only budget is bench::SharedSteps, an experiment that shows what a busy machine leaves of a
// restoration: benches install it, and `kvcake run` where --compute-share or --compute-trace asks
// for it. `kvcake serve` has none.
#pragma once

#include <cstdint>
#include <optional>

#include "base/clock.h"
#include "cake/restorer.h"
#include "model/model.h"

namespace kvcake {

// Called on the engine thread only.
class StepBudget {
 public:
  virtual ~StepBudget() = default;

  // What restorations get of the step that begins now, and what they may count on in those to come.
  // Called once while a step is planned.
  virtual ComputeBudget ForRestorations(TimePoint now) = 0;
  // Others' slice of up to `tokens` tokens, which joins a step whose first restoration is at
  // `position` of its prompt; nothing: the step stays as it is. Valid until the next call.
  virtual std::optional<Slice> Fill(int position, int tokens) = 0;
  // The step that began then has been run, with so many chunks of restorations.
  virtual void Ran(TimePoint began, int chunks) = 0;
  // Pages of the engine's pool that it holds and that nobody is promised; constant.
  virtual uint64_t pages() const = 0;
};

}  // namespace kvcake
