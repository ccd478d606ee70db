// Whether a device is worth asking: after failures in a row, or one that takes for ever, it is not,
// until a probe has gone well. So a dead device costs one wait and not one for every chunk.
#pragma once

#include <atomic>
#include <optional>
#include <string>

#include "base/clock.h"
#include "base/mutex.h"

namespace kvcake {

// Thread-safe; open() is one load.
class Breaker {
 public:
  Breaker(int failures_max, Seconds probe_interval)
      : failures_max_(failures_max), probe_interval_(probe_interval) {}

  // The device is not to be asked but by probes.
  bool open() const { return open_; }
  // It is open because the device did not answer at all, and has not since.
  bool hangs() const { return hangs_; }
  // A read of `path` failed; failures_max in a row open it.
  void Failed(const std::string& path) EXCLUDES(mutex_);
  // A read of `path` does not return: opens it at once.
  void Overdue(const std::string& path) EXCLUDES(mutex_);
  // Something was read: it closes.
  void Succeeded() EXCLUDES(mutex_);

  // The file to try now, when open and a probe is due; the caller answers with one of the above.
  std::optional<std::string> TakeProbe(TimePoint now) EXCLUDES(mutex_);
  // When the next probe is due; nothing while closed.
  std::optional<TimePoint> next_probe() const EXCLUDES(mutex_);

 private:
  void OpenLocked(const std::string& path) REQUIRES(mutex_);

  const int failures_max_;
  const Seconds probe_interval_;
  // Atomic, so that open() and hangs() need no mutex: who reads one alone, or one before the other,
  // asks a device once more or once less. The functions that change them hold the mutex for what it
  // guards, and so change all three together.
  std::atomic<bool> open_{false};
  std::atomic<bool> hangs_{false};
  std::atomic<int> in_row_{0};

  mutable Mutex mutex_;
  std::string path_ GUARDED_BY(mutex_);  // of the last failure
  // That it is open; a flickering device is logged once a minute.
  bool logged_ GUARDED_BY(mutex_) = false;
  TimePoint quiet_until_ GUARDED_BY(mutex_){};
  TimePoint next_probe_ GUARDED_BY(mutex_){};
};

}  // namespace kvcake
