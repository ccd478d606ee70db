// A few threads for calls that may take long, such as those of a file system.
#pragma once

#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "base/mutex.h"

namespace kvcake {

// Runs functions on as many threads as are needed, up to a bound: one that does not return keeps
// its thread, and no function from another. They run on the CPUs that the thread which makes this
// may run on, as those that need them may be bound to one that computes. Thread-safe.
class WorkerThreads {
 public:
  // At least one thread, which is started at once, as there may be none to be had later; each other
  // when it is needed for the first time, if it can be then.
  explicit WorkerThreads(int threads_max);
  // Runs what is left, then ends the threads.
  ~WorkerThreads();
  WorkerThreads(const WorkerThreads&) = delete;
  WorkerThreads& operator=(const WorkerThreads&) = delete;

  // Functions are begun in the order they were given; one may call Soon, and must not destroy the
  // threads.
  void Soon(std::function<void()> function) EXCLUDES(mutex_);

 private:
  void Loop() EXCLUDES(mutex_);
  void CallThread() REQUIRES(mutex_);

  const int threads_max_;
  const std::vector<int> cpus_;

  Mutex mutex_;
  CondVar work_;
  std::deque<std::function<void()>> waiting_ GUARDED_BY(mutex_);
  std::vector<std::thread> threads_ GUARDED_BY(mutex_);
  int idle_ GUARDED_BY(mutex_) = 0;          // threads that sleep
  bool calling_ GUARDED_BY(mutex_) = false;  // one was woken or started, and has not come yet
  bool stop_ GUARDED_BY(mutex_) = false;
};

}  // namespace kvcake
