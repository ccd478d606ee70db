#include "bench/load_ladder.h"

#include <cmath>

namespace kvcake::bench {
namespace {

constexpr double kRung = 2;

}  // namespace

Result<LadderEnd> Climb(const LoadLadder& ladder,
                        const std::function<Result<bool>(double load)>& keeps) {
  double best = 0, failed = 0;
  const auto climb = [&](double load) -> Status {
    ASSIGN_OR_RETURN(const bool kept, keeps(load));
    (kept ? best : failed) = load;
    return {};
  };
  for (double load = ladder.first; failed == 0 && load <= ladder.most; load *= kRung) {
    RETURN_IF_ERROR(climb(load));
  }
  for (double load = ladder.first / kRung; best == 0 && load >= ladder.least; load /= kRung) {
    RETURN_IF_ERROR(climb(load));
  }
  for (int i = 0; i < ladder.halvings && best > 0 && failed > 0; ++i) {
    RETURN_IF_ERROR(climb(std::sqrt(best * failed)));
  }
  return LadderEnd{.load = best, .is_top = best > 0 && failed == 0};
}

}  // namespace kvcake::bench
