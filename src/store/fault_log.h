// How a part says that something fails without saying it for every chunk.
#pragma once

#include <atomic>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/status.h"

namespace kvcake {

// Logs a fault when it begins and when it has gone, and one that flickers at most once a minute.
// Thread-safe; Succeeded is one load while nothing fails.
class FaultLog {
 public:
  // `what` is being done ("reading chunks"), and outlives the log.
  explicit FaultLog(const char* what) : what_(what) {}

  void Failed(const Error& error) EXCLUDES(mutex_);
  void Succeeded() EXCLUDES(mutex_);

 private:
  const char* const what_;
  std::atomic<bool> failing_{false};  // logged as such; written with the mutex held

  Mutex mutex_;
  TimePoint quiet_until_ GUARDED_BY(mutex_);
};

}  // namespace kvcake
