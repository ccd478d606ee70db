#include "base/mutex.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace kvcake {
namespace {

class Counter {
 public:
  void Add() EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    ++value_;
    changed_.NotifyAll();
  }
  // The value once it is at least `value`.
  int Await(int value) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    while (value_ < value) changed_.Wait(mutex_);
    return value_;
  }
  bool Reaches(int value, TimePoint deadline) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    while (value_ < value) {
      if (!changed_.WaitUntil(mutex_, deadline)) return false;
    }
    return true;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  int value_ GUARDED_BY(mutex_) = 0;
};

TEST(MutexTest, ThreadsTakeTurnsAndWakeWhoWaits) {
  constexpr int kThreads = 4, kAdds = 2000;
  Counter counter;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      for (int j = 0; j < kAdds; ++j) counter.Add();
    });
  }
  EXPECT_EQ(counter.Await(kThreads * kAdds), kThreads * kAdds);
  for (std::thread& thread : threads) thread.join();
}

TEST(MutexTest, AWaitEndsAtItsDeadlineOrWhenWhatItWaitsForComes) {
  Counter counter;
  EXPECT_FALSE(counter.Reaches(1, Clock::Real().Now() + Seconds(1e-3)));
  std::thread thread([&] { counter.Add(); });
  EXPECT_TRUE(counter.Reaches(1, TimePoint::max()));
  thread.join();
}

TEST(MutexTest, AScopeMayLetItGoInBetween) {
  Mutex mutex;
  MutexLock lock(mutex);
  lock.Unlock();
  std::thread other([&] { MutexLock inner(mutex); });  // would wait for ever
  other.join();
  lock.Lock();
}

}  // namespace
}  // namespace kvcake
