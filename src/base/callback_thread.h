// One sleeping thread that runs functions at given times: how tiers and ranks call `done` from a
// thread of their own. Functions due at the same time run in the order they were given.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "base/clock.h"

namespace kvcake {

class CallbackThread {
 public:
  CallbackThread();
  // Runs what is left at once, whatever its time, then ends the thread.
  ~CallbackThread();
  CallbackThread(const CallbackThread&) = delete;
  CallbackThread& operator=(const CallbackThread&) = delete;

  // A function may call At; it must not destroy the thread. Any thread.
  void At(TimePoint time, std::function<void()> function);
  void Soon(std::function<void()> function) { At(TimePoint{}, std::move(function)); }

 private:
  void Loop();

  std::mutex mutex_;
  std::condition_variable wake_;
  // Guarded by mutex_. Keyed by time, then order of arrival.
  std::map<std::pair<TimePoint, uint64_t>, std::function<void()>> due_;
  uint64_t next_ = 0;
  bool stop_ = false;

  std::thread thread_;
};

}  // namespace kvcake
