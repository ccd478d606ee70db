#include "server/prepare_pool.h"

#include <algorithm>
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

bool PreparePool::Queue::IsFull(const std::string& tenant, size_t max) const {
  if (load_all >= max) return true;
  const auto own = load.find(tenant);
  return !tenant.empty() && own != load.end() && own->second >= std::max<size_t>(1, max / 2);
}

void PreparePool::Queue::Add(Work work) {
  ++load_all;
  ++load[work.tenant];
  auto& own = waiting[work.tenant];
  if (own.empty()) turns.push_back(work.tenant);
  own.push_back(std::move(work.run));
}

PreparePool::Work PreparePool::Queue::TakeNext() {
  Work work{.tenant = std::move(turns.front()), .run = {}};
  turns.pop_front();
  const auto own = waiting.find(work.tenant);
  work.run = std::move(own->second.front());
  own->second.pop_front();
  own->second.empty() ? (void)waiting.erase(own) : turns.push_back(work.tenant);
  return work;
}

void PreparePool::Queue::Done(const std::string& tenant) {
  --load_all;
  const auto own = load.find(tenant);
  if (--own->second == 0) load.erase(own);
}

bool PreparePool::Post(const std::string& tenant, size_t bytes, std::function<void()> work) {
  const Kind kind = bytes < options_.small_bytes ? kSmall : kLarge;
  {
    MutexLock lock(mutex_);
    if (queues_[kind].IsFull(tenant, options_.queue_max)) return false;
    queues_[kind].Add({.tenant = tenant, .run = std::move(work)});
  }
  changed_.NotifyAll();  // one alone may be a thread that does not take it
  return true;
}

PreparePool::Load PreparePool::load() const {
  MutexLock lock(mutex_);
  return {.small = queues_[kSmall].load_all, .large = queues_[kLarge].load_all};
}

// A thread that takes all takes what is large first: what is small has a thread of its own.
void PreparePool::Run(bool only_small) {
  // The thread that made the pool is the engine's, which may have a CPU of its own.
  if (!options_.cpus.empty()) (void)RestrictToCpus(options_.cpus);
  if (!only_small) RunInBackground();  // no step, and nobody's small request, waits for it
  MutexLock lock(mutex_);
  for (;;) {
    const Kind kind = only_small || queues_[kLarge].turns.empty() ? kSmall : kLarge;
    if (queues_[kind].turns.empty()) {
      if (stop_) return;
      changed_.Wait(mutex_);
      continue;
    }
    Work work = queues_[kind].TakeNext();
    lock.Unlock();
    work.run();
    work.run = {};
    lock.Lock();
    queues_[kind].Done(work.tenant);
  }
}

}  // namespace kvcake
