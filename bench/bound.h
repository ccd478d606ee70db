// The least time to first token that any division of a prompt between the lanes could take, from
// what each lane took alone in the same run.
#pragma once

#include <vector>

#include "cake/cost_model.h"
#include "engine/request.h"

namespace kvcake::bench {

// Seconds from the start of a restoration until the first i chunks are computed, or any i chunks
// are loaded, at [i]; [0] is 0.
using LaneCurve = std::vector<double>;

// The curve of a compute-only run. `fit` says how a slice's time spreads over its chunks: later
// tokens see more and cost more; evenly when nothing is known.
LaneCurve ComputeCurve(const RestoreReport& compute_only, const ComputeFit& fit);
// The curve of a load-only run that loaded at least two chunks and computed none; kIo otherwise.
// Goes on at the run's pace until there are `chunks`.
Result<LaneCurve> LoadCurve(const RestoreReport& load_only, int chunks);

struct Bound {
  double whole_s = 0;       // of whole chunks
  double fractional_s = 0;  // as if a chunk could be cut anywhere
  int split = 0;            // of whole_s: chunks before it are computed
};

// Chunk i can be loaded if present[i]. Compute has to make every chunk before a split and the
// absent ones after it, each when all before it is there; loading makes the others. `tail_s`: the
// compulsory last part of the prompt, after both.
Bound LeastTime(const LaneCurve& compute, const LaneCurve& load, const std::vector<bool>& present,
                double tail_s);

}  // namespace kvcake::bench
