#include "comm/link_noise.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace kvcake {

LinkBursts::LinkBursts(const LinkNoise& noise, int ranks, TimePoint epoch)
    : noise_(noise), pairs_(ranks - 1), random_(noise.seed), last_end_(epoch) {
  CHECK(noise.slowdown >= 1);
  CHECK(noise.slowdown == 1 || (noise.burst_mean.count() > 0 && noise.gap_mean.count() > 0));
}

// The same on every machine, which the standard library's is not.
double LinkBursts::Exponential(Seconds mean) {
  const double uniform = static_cast<double>(random_() >> 11) * 0x1p-53;
  return -std::log1p(-uniform) * mean.count();
}

void LinkBursts::AddBurst() {
  const TimePoint start = last_end_ + Seconds(Exponential(noise_.gap_mean));
  last_end_ = start + Seconds(Exponential(noise_.burst_mean));
  const int pair = static_cast<int>(random_() % static_cast<uint64_t>(pairs_));
  bursts_.push_back({start, last_end_, pair});
}

TimePoint LinkBursts::Passed(int from, int to, TimePoint start, double bytes,
                             double rate_bytes_per_s) {
  const bool neighbours = std::abs(from - to) == 1;
  if (noise_.slowdown == 1 || !neighbours) return start + Seconds(bytes / rate_bytes_per_s);
  const int pair = std::min(from, to);
  TimePoint now = start;
  // Lets bytes through until `end`; whether the last one was among them: then `now` is its time.
  const auto pass = [&](TimePoint end, double rate) {
    const double passing = std::max(0.0, (end - now).count()) * rate;
    if (passing >= bytes) {
      now += Seconds(bytes / rate);
      return true;
    }
    bytes -= passing;
    now = std::max(now, end);
    return false;
  };
  for (size_t i = 0;; ++i) {
    if (i == bursts_.size()) AddBurst();
    const Burst burst = bursts_[i];
    if (burst.pair != pair || burst.end <= now) continue;
    if (pass(burst.start, rate_bytes_per_s)) return now;
    if (pass(burst.end, rate_bytes_per_s / noise_.slowdown)) return now;
  }
}

void LinkBursts::Forget(TimePoint now) {
  while (!bursts_.empty() && bursts_.front().end <= now) bursts_.pop_front();
}

}  // namespace kvcake
