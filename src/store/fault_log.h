// How a part says that something fails without saying it for every chunk.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/status.h"

namespace kvcake {

// Logs a fault when it begins and when it has gone, and one that flickers at most once a minute. A
// fault with another code is another one, and is logged as well: a server that has ended and comes
// back with another password first closes connections. Thread-safe; Succeeded is one load while
// nothing fails.
class FaultLog {
 public:
  // `what` is being done ("reading chunks"), and outlives the log.
  explicit FaultLog(const char* what) : what_(what) {}

  void Failed(const Error& error) EXCLUDES(mutex_);
  void Succeeded() EXCLUDES(mutex_);

 private:
  const char* const what_;
  // Whether the failure has been logged. Atomic, so that Succeeded needs no mutex while nothing
  // fails: it decides with the mutex held whether to log, and one that comes too early for that
  // leaves it to the next.
  std::atomic<bool> failing_{false};

  Mutex mutex_;
  TimePoint quiet_until_ GUARDED_BY(mutex_);
  uint32_t said_ GUARDED_BY(mutex_) = 0;  // bits of codes, since all was well
};

}  // namespace kvcake
