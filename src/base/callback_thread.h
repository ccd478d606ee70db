// One sleeping thread that runs functions at given times: how tiers and ranks call `done` from a
// thread of their own. Functions due at the same time run in the order they were given.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/mutex.h"

namespace kvcake {

class CallbackThread {
 public:
  CallbackThread();
  // Runs what is left at once, whatever its time, then ends the thread.
  ~CallbackThread();
  CallbackThread(const CallbackThread&) = delete;
  CallbackThread& operator=(const CallbackThread&) = delete;

  // A function may call At; it must not destroy the thread. Any thread.
  void At(TimePoint time, std::function<void()> function) EXCLUDES(mutex_);
  void Soon(std::function<void()> function) { At(TimePoint{}, std::move(function)); }

 private:
  void Loop() EXCLUDES(mutex_);

  Mutex mutex_;
  CondVar wake_;
  // Keyed by time, then order of arrival.
  std::map<std::pair<TimePoint, uint64_t>, std::function<void()>> due_ GUARDED_BY(mutex_);
  uint64_t next_ GUARDED_BY(mutex_) = 0;
  bool stop_ GUARDED_BY(mutex_) = false;

  std::thread thread_;
};

}  // namespace kvcake
