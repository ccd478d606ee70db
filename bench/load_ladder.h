// How high a load may be until something is no longer kept.
#pragma once

#include <functional>

#include "base/status.h"

namespace kvcake::bench {

// Loads are tried from `first` up by doubling, or down by halving where that one is too much; what
// lies between the highest that is kept and the lowest that is not is halved so often.
struct LoadLadder {
  double first = 1;
  double least = 1, most = 1;  // no rung is beyond these
  int halvings = 2;
};

struct LadderEnd {
  double load = 0;      // the highest that was kept; 0: none was
  bool is_top = false;  // no load was too much: the ladder ends before the limit
};

// `keeps` is asked of one load after another; its error ends the search.
Result<LadderEnd> Climb(const LoadLadder& ladder,
                        const std::function<Result<bool>(double load)>& keeps);

}  // namespace kvcake::bench
