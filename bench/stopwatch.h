// How fast bytes are moved, and at what cost.
#pragma once

#include <cstdint>

#include "base/clock.h"
#include "bench/harness.h"

namespace kvcake::bench {

struct Rate {
  double bytes_per_s = 0;
  double cpu_share = 0;  // of one core, of the whole process
};

// Time and processor from its making to Of().
class Stopwatch {
 public:
  Rate Of(uint64_t bytes) const {
    const double wall = (Clock::Real().Now() - start_).count();
    return {static_cast<double>(bytes) / wall, (CpuSeconds() - cpu_) / wall};
  }

 private:
  const TimePoint start_ = Clock::Real().Now();
  const double cpu_ = CpuSeconds();
};

}  // namespace kvcake::bench
