// A mutex that clang checks: with -Wthread-safety (./dev test --all) code that touches a GUARDED_BY
// field, or calls a REQUIRES function, without holding the mutex does not compile. Other compilers
// see std::mutex and std::condition_variable.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>

#include "base/clock.h"

#if defined(__clang__)
#define KVCAKE_ANNOTATION(x) __attribute__((x))
#else
#define KVCAKE_ANNOTATION(x)
#endif

// On a field: it is read and written with this mutex held; PT_: what it points to is.
#define GUARDED_BY(x) KVCAKE_ANNOTATION(guarded_by(x))
#define PT_GUARDED_BY(x) KVCAKE_ANNOTATION(pt_guarded_by(x))
// On a function: its caller holds these mutexes, or holds none of them.
#define REQUIRES(...) KVCAKE_ANNOTATION(requires_capability(__VA_ARGS__))
#define EXCLUDES(...) KVCAKE_ANNOTATION(locks_excluded(__VA_ARGS__))
// On a function: it locks, unlocks, or returns a reference to a mutex.
#define ACQUIRE(...) KVCAKE_ANNOTATION(acquire_capability(__VA_ARGS__))
#define RELEASE(...) KVCAKE_ANNOTATION(release_capability(__VA_ARGS__))
#define RETURN_CAPABILITY(x) KVCAKE_ANNOTATION(lock_returned(x))

namespace kvcake {

class KVCAKE_ANNOTATION(capability("mutex")) Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  void Lock() ACQUIRE() { mutex_.lock(); }
  void Unlock() RELEASE() { mutex_.unlock(); }
  // Tells the compiler that the caller holds it, where it cannot know: in a lambda.
  void AssertHeld() const KVCAKE_ANNOTATION(assert_capability(this)) {}

 private:
  friend class CondVar;
  std::mutex mutex_;
};

// Holds a mutex for a scope, out of which it may be let go in between.
class KVCAKE_ANNOTATION(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) ACQUIRE(mutex) : mutex_(mutex) { mutex_.Lock(); }
  ~MutexLock() RELEASE() {
    if (held_) mutex_.Unlock();
  }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

  void Unlock() RELEASE() {
    mutex_.Unlock();
    held_ = false;
  }
  void Lock() ACQUIRE() {
    mutex_.Lock();
    held_ = true;
  }

 private:
  Mutex& mutex_;
  bool held_ = true;
};

// Waits may end for no reason: callers wait in a loop for what they want, as the compiler does not
// see that a predicate's lambda holds the mutex.
class CondVar {
 public:
  void Wait(Mutex& mutex) REQUIRES(mutex) {
    std::unique_lock lock(mutex.mutex_, std::adopt_lock);
    condition_.wait(lock);
    lock.release();
  }
  // Until a time of Clock::Real(), which may be TimePoint::max(); false when it has passed.
  bool WaitUntil(Mutex& mutex, TimePoint deadline) REQUIRES(mutex) {
    using Tick = std::chrono::steady_clock::duration;
    constexpr Seconds kLongest{3600};  // every time until then can be counted in ticks
    const TimePoint until = std::min(deadline, Clock::Real().Now() + kLongest);
    std::unique_lock lock(mutex.mutex_, std::adopt_lock);
    condition_.wait_until(lock, std::chrono::ceil<Tick>(until));
    lock.release();
    return Clock::Real().Now() < deadline;
  }
  void NotifyOne() { condition_.notify_one(); }
  void NotifyAll() { condition_.notify_all(); }

 private:
  std::condition_variable condition_;
};

}  // namespace kvcake
