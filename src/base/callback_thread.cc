#include "base/callback_thread.h"

#include "base/cpu.h"

namespace kvcake {

CallbackThread::CallbackThread() : thread_([this] { Loop(); }) {}

CallbackThread::~CallbackThread() {
  {
    MutexLock lock(mutex_);
    stop_ = true;
  }
  wake_.NotifyOne();
  thread_.join();
}

void CallbackThread::At(TimePoint time, std::function<void()> function) {
  MutexLock lock(mutex_);
  due_.emplace(std::pair(time, next_++), std::move(function));
  // Under the lock: once the function has run, its owner may destroy this object.
  wake_.NotifyOne();
}

void CallbackThread::Loop() {
  RunPromptly();
  MutexLock lock(mutex_);
  while (true) {
    if (due_.empty()) {
      if (stop_) return;
      wake_.Wait(mutex_);
      continue;
    }
    const TimePoint time = due_.begin()->first.first;
    if (!stop_ && time > Clock::Real().Now()) {
      wake_.WaitUntil(mutex_, time);
      continue;
    }
    auto function = std::move(due_.begin()->second);
    due_.erase(due_.begin());
    lock.Unlock();
    function();
    function = nullptr;  // what it captured goes before the lock is taken
    lock.Lock();
  }
}

}  // namespace kvcake
