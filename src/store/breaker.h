// Whether a device is worth asking: after failures in a row, or one that takes for ever, it is not,
// until a probe has gone well. So a dead device costs one wait and not one for every chunk.
#pragma once

#include <atomic>
#include <mutex>
#include <optional>
#include <string>

#include "base/clock.h"

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
  void Failed(const std::string& path);
  // A read of `path` does not return: opens it at once.
  void Overdue(const std::string& path);
  // Something was read: it closes.
  void Succeeded();

  // The file to try now, when open and a probe is due; the caller answers with one of the above.
  std::optional<std::string> TakeProbe(TimePoint now);
  // When the next probe is due; nothing while closed.
  std::optional<TimePoint> next_probe() const;

 private:
  void OpenLocked(const std::string& path);

  const int failures_max_;
  const Seconds probe_interval_;
  std::atomic<bool> open_{false};   // written under mutex_
  std::atomic<bool> hangs_{false};  // written under mutex_
  std::atomic<int> in_row_{0};      // written under mutex_

  mutable std::mutex mutex_;
  // Guarded by mutex_.
  std::string path_;     // of the last failure
  bool logged_ = false;  // that it is open; a flickering device is logged once a minute
  TimePoint quiet_until_{};
  TimePoint next_probe_{};
};

}  // namespace kvcake
