// What a step may take while answers are being written.
#pragma once

#include <memory>
#include <span>

#include "base/clock.h"
#include "cake/cost_model.h"
#include "engine/sequence.h"

namespace kvcake {

// The tokens of prompts, at most `most` and at least a chunk, that a step which also decodes may
// compute to be expected to end within `step_max`, whichever of the prompts is next. Whole chunks.
int ShareStep(std::span<const std::unique_ptr<Sequence>> running, const ComputeFit& fit,
              Seconds step_max, int chunk_tokens, int most);

}  // namespace kvcake
