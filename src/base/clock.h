// Time as kvcake sees it. Everything that decides by time takes a Clock, so that simulations run
// the real classes on a fake one.
#pragma once

#include <chrono>

namespace kvcake {

using Seconds = std::chrono::duration<double>;
using TimePoint = std::chrono::time_point<std::chrono::steady_clock, Seconds>;

class Clock {
 public:
  virtual ~Clock() = default;
  virtual TimePoint Now() const = 0;

  // The machine's monotonic clock; lives as long as the process.
  static const Clock& Real() noexcept;
};

// When this process was started (exec), on Clock::Real(); up to 10 ms early, for so the kernel
// counts. Now where it does not say.
TimePoint ProcessStart();

// A clock that moves only when told to. Not thread-safe.
class FakeClock : public Clock {
 public:
  TimePoint Now() const override { return now_; }
  void AdvanceTo(TimePoint t) {
    if (t > now_) now_ = t;
  }
  void Advance(Seconds d) { now_ += d; }

 private:
  TimePoint now_{};
};

}  // namespace kvcake
