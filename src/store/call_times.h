// How often a tier has called for something, and how long it waited.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/clock.h"
#include "store/tier.h"

namespace kvcake {

// Thread-safe; the count and the time are each right, though one may be a call ahead.
class CallTimes {
 public:
  void Add(Seconds took) {
    ++calls_;
    nanoseconds_ += static_cast<uint64_t>(took.count() * 1e9);
  }
  CallTotals totals() const {
    return {.calls = calls_, .seconds = static_cast<double>(nanoseconds_) * 1e-9};
  }

 private:
  std::atomic<uint64_t> calls_{0};
  std::atomic<uint64_t> nanoseconds_{0};
};

// Adds one call, from construction to destruction.
class TimedCall {
 public:
  explicit TimedCall(CallTimes& times) : times_(times) {}
  ~TimedCall() { times_.Add(Clock::Real().Now() - began_); }
  TimedCall(const TimedCall&) = delete;
  TimedCall& operator=(const TimedCall&) = delete;

 private:
  CallTimes& times_;
  const TimePoint began_ = Clock::Real().Now();
};

}  // namespace kvcake
