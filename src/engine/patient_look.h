// Asks stores what they hold, and waits a little for the answer: what another process has kept, or
// this one before it was started, is known to nobody who has not asked.
#pragma once

#include <span>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "cake/restorer.h"

namespace kvcake {

// One thread's.
class PatientLook {
 public:
  static constexpr Seconds kPatience{50e-3};

  // Borrows both.
  PatientLook(const Restorer& restorer, const Clock& clock) : restorer_(restorer), clock_(clock) {}

  // Whether each is in memory or held by a store, as far as that is known after `patience`. Once it
  // was not enough nobody waits for a second: a store that hangs costs 5% of the time at most.
  std::vector<bool> Held(std::span<const ChunkKey> keys, Seconds patience = kPatience) {
    constexpr Seconds kWithout{1};
    if (clock_.Now() < look_from_) return restorer_.Known(keys, /*stored=*/true);
    StoreLook look = restorer_.Look(keys, patience);
    if (!look.complete) look_from_ = clock_.Now() + kWithout;
    return std::move(look.held);
  }

 private:
  const Restorer& restorer_;
  const Clock& clock_;
  TimePoint look_from_{};
};

}  // namespace kvcake
