// Bursts of other traffic on the links of a chain: at any time at most one pair of neighbours has
// one, in both directions (KV-Runahead's noisy network). They follow from the seed alone: every
// rank that has the same noise and the same epoch sees the same bursts.
#pragma once

#include <cstdint>
#include <deque>
#include <random>

#include "base/clock.h"

namespace kvcake {

struct LinkNoise {
  uint64_t seed = 1;
  double slowdown = 1;  // a link's rate is divided by it during a burst; 1: no noise
  Seconds burst_mean{0};
  Seconds gap_mean{0};  // from a burst's end to the next one's start; both are exponential
};

// Not thread-safe.
class LinkBursts {
 public:
  LinkBursts(const LinkNoise& noise, int ranks, TimePoint epoch);

  // When the last of `bytes` has passed the link of these two ranks, which lets `rate_bytes_per_s`
  // through while it is quiet and takes the first one at `start`.
  TimePoint Passed(int from, int to, TimePoint start, double bytes, double rate_bytes_per_s);
  // Nothing will be asked about the time before `now`.
  void Forget(TimePoint now);

 private:
  struct Burst {
    TimePoint start, end;
    int pair;  // of this rank and the next
  };

  void AddBurst();
  double Exponential(Seconds mean);

  const LinkNoise noise_;
  const int pairs_;
  std::mt19937_64 random_;
  TimePoint last_end_;
  std::deque<Burst> bursts_;  // those known that are not forgotten, in order
};

}  // namespace kvcake
