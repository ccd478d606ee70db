#include "server/prepare_pool.h"

#include <utility>

#include "base/cpu.h"

namespace kvcake {

PreparePool::PreparePool(Options options) : options_(std::move(options)) {
  threads_.emplace_back([this] { Run(/*only_small=*/true); });
  for (int i = 0; i < options_.threads; ++i) {
    threads_.emplace_back([this] { Run(/*only_small=*/false); });
  }
}

PreparePool::~PreparePool() {
  {
    MutexLock lock(mutex_);
    stop_ = true;
  }
  changed_.NotifyAll();
  for (std::thread& thread : threads_) thread.join();
}

bool PreparePool::Post(size_t bytes, std::function<void()> work) {
  const Kind kind = bytes < options_.small_bytes ? kSmall : kLarge;
  {
    MutexLock lock(mutex_);
    if (load_[kind] >= options_.queue_max) return false;
    ++load_[kind];
    waiting_[kind].push_back(std::move(work));
  }
  changed_.NotifyAll();  // one alone may be a thread that does not take it
  return true;
}

PreparePool::Load PreparePool::load() const {
  MutexLock lock(mutex_);
  return {.small = load_[kSmall], .large = load_[kLarge]};
}

// A thread that takes all takes what is large first: what is small has a thread of its own.
void PreparePool::Run(bool only_small) {
  // The thread that made the pool is the engine's, which may have a CPU of its own.
  if (!options_.cpus.empty()) (void)RestrictToCpus(options_.cpus);
  if (!only_small) RunInBackground();  // no step, and nobody's small request, waits for it
  MutexLock lock(mutex_);
  for (;;) {
    const Kind kind = only_small || waiting_[kLarge].empty() ? kSmall : kLarge;
    if (waiting_[kind].empty()) {
      if (stop_) return;
      changed_.Wait(mutex_);
      continue;
    }
    std::function<void()> work = std::move(waiting_[kind].front());
    waiting_[kind].pop_front();
    lock.Unlock();
    work();
    work = {};
    lock.Lock();
    --load_[kind];
  }
}

}  // namespace kvcake
