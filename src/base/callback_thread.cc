#include "base/callback_thread.h"

namespace kvcake {

CallbackThread::CallbackThread() : thread_([this] { Loop(); }) {}

CallbackThread::~CallbackThread() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void CallbackThread::At(TimePoint time, std::function<void()> function) {
  std::lock_guard lock(mutex_);
  due_.emplace(std::pair(time, next_++), std::move(function));
  // Under the lock: once the function has run, its owner may destroy this object.
  wake_.notify_one();
}

void CallbackThread::Loop() {
  std::unique_lock lock(mutex_);
  while (true) {
    if (due_.empty()) {
      if (stop_) return;
      wake_.wait(lock);
      continue;
    }
    const TimePoint time = due_.begin()->first.first;
    if (!stop_ && time > Clock::Real().Now()) {
      wake_.wait_until(lock,
                       std::chrono::time_point_cast<std::chrono::steady_clock::duration>(time));
      continue;
    }
    auto function = std::move(due_.begin()->second);
    due_.erase(due_.begin());
    lock.unlock();
    function();
    function = nullptr;  // what it captured goes before the lock is taken
    lock.lock();
  }
}

}  // namespace kvcake
