// A lock that counts what it costs.
#pragma once

#include "base/clock.h"
#include "base/mutex.h"

namespace kvcake {

// What holding a mutex has cost: the time until it was had, and from there until it was let go.
struct MutexTimes {
  Seconds waited{0};
  Seconds held{0};
};

// A MutexLock that adds to such times, which the mutex guards.
class KVCAKE_ANNOTATION(scoped_lockable) TimedMutexLock {
 public:
  TimedMutexLock(Mutex& mutex, MutexTimes& times) ACQUIRE(mutex)
      : TimedMutexLock(mutex, times.waited, &times.held) {}
  // Adds what it waited only: for those whose work under the mutex is another than the counted one.
  TimedMutexLock(Mutex& mutex, Seconds& waited) ACQUIRE(mutex)
      : TimedMutexLock(mutex, waited, nullptr) {}
  ~TimedMutexLock() RELEASE() {
    if (held_ != nullptr) *held_ += Clock::Real().Now() - began_;
    mutex_.Unlock();
  }
  TimedMutexLock(const TimedMutexLock&) = delete;
  TimedMutexLock& operator=(const TimedMutexLock&) = delete;

 private:
  TimedMutexLock(Mutex& mutex, Seconds& waited, Seconds* held) ACQUIRE(mutex)
      : mutex_(mutex), held_(held) {
    const TimePoint asked = Clock::Real().Now();
    mutex_.Lock();
    began_ = Clock::Real().Now();
    waited += began_ - asked;
  }

  Mutex& mutex_;
  Seconds* const held_;  // null: not counted
  TimePoint began_;
};

}  // namespace kvcake
