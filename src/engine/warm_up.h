// Forward passes before the first prompt, over tokens and pages that mean nothing.
#pragma once

#include "base/clock.h"
#include "cake/cost_model.h"
#include "model/model.h"

namespace kvcake {

struct WarmUpOptions {
  int slice_tokens = 512;  // the most of a pass
  Seconds max{0.3};        // no further pass is started after this long
};

// Short ones, so that memory is touched and the compute cost, if it knows nothing yet, has its
// first samples.
[[nodiscard]] Status WarmUp(Model& model, PagePool& pool, ComputeCost& cost, const Clock& clock,
                            const WarmUpOptions& options);

// Some far into a prompt, within about a second unless one alone takes longer; none if the compute
// cost has more samples than a warm-up makes. For who predicts whole prompts: at the beginning of
// one attention takes so little that noise passes for it.
[[nodiscard]] Status WarmUpFar(Model& model, PagePool& pool, ComputeCost& cost, const Clock& clock);

}  // namespace kvcake
