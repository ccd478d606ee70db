#include "base/worker_threads.h"

#include <algorithm>
#include <utility>

#include "base/cpu.h"

namespace kvcake {

WorkerThreads::WorkerThreads(int threads_max)
    : threads_max_(std::max(threads_max, 1)), cpus_(AllowedCpus()) {
  MutexLock lock(mutex_);
  threads_.emplace_back([this] { Loop(); });
  calling_ = true;
}

WorkerThreads::~WorkerThreads() {
  std::vector<std::thread> threads;
  {
    MutexLock lock(mutex_);
    stop_ = true;
    threads.swap(threads_);
  }
  work_.NotifyAll();
  for (std::thread& thread : threads) thread.join();
}

void WorkerThreads::Soon(std::function<void()> function) {
  MutexLock lock(mutex_);
  waiting_.push_back(std::move(function));
  CallThread();
}

// Calls one at a time, which calls the next if there is work left when it comes. So calls that
// return at once are made by one thread, without waking the others for each.
void WorkerThreads::CallThread() {
  if (calling_ || waiting_.empty() || stop_) return;
  if (idle_ > 0) {
    work_.NotifyOne();
  } else if (static_cast<int>(threads_.size()) < threads_max_) {
    try {
      threads_.emplace_back([this] { Loop(); });
    } catch (...) {  // no memory, or no thread, is left: those that there are do the work
      return;
    }
  } else {
    return;
  }
  calling_ = true;
}

void WorkerThreads::Loop() {
  (void)RestrictToCpus(cpus_);  // where that is not possible: as the thread that needed it
  RunPromptly();
  MutexLock lock(mutex_);
  calling_ = false;
  while (true) {
    if (waiting_.empty()) {
      if (stop_) return;
      ++idle_;
      work_.Wait(mutex_);
      --idle_;
      calling_ = false;
      continue;
    }
    auto function = std::move(waiting_.front());
    waiting_.pop_front();
    CallThread();
    lock.Unlock();
    function();
    function = nullptr;  // what it captured goes before the lock is taken
    lock.Lock();
  }
}

}  // namespace kvcake
