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
  TimedMutexLock(Mutex& mutex, MutexTimes& times) ACQUIRE(mutex) : mutex_(mutex), times_(times) {
    const TimePoint asked = Clock::Real().Now();
    mutex_.Lock();
    began_ = Clock::Real().Now();
    times_.waited += began_ - asked;
  }
  ~TimedMutexLock() RELEASE() {
    times_.held += Clock::Real().Now() - began_;
    mutex_.Unlock();
  }
  TimedMutexLock(const TimedMutexLock&) = delete;
  TimedMutexLock& operator=(const TimedMutexLock&) = delete;

 private:
  Mutex& mutex_;
  MutexTimes& times_;
  TimePoint began_;
};

}  // namespace kvcake
