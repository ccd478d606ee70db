#include "lib/async_puts.h"

#include <iterator>
#include <new>
#include <utility>

#include "lib/cache.h"

namespace kvcake {

void AsyncPuts::Add(std::vector<AsyncWrite> writes) {
  std::list<AsyncWrite> added(std::make_move_iterator(writes.begin()),
                              std::make_move_iterator(writes.end()));
  MutexLock lock(mutex_);
  thread_.Soon([this] { PutWaiting(); });
  waiting_.splice(waiting_.end(), added);
}

// The thread may wait for a CPU for longer than putting takes, as beside engines that look for work
// without sleeping; who waits has one.
void AsyncPuts::Drain() {
  PutWaiting();
  MutexLock lock(mutex_);
  while (!waiting_.empty() || putting_ > 0) changed_.Wait(mutex_);
}

PutCounts AsyncPuts::Wait() {
  Drain();
  MutexLock lock(mutex_);
  return std::exchange(counts_, {});
}

void AsyncPuts::PutWaiting() {
  MutexLock lock(mutex_);
  while (!waiting_.empty()) {
    std::list<AsyncWrite> one;
    one.splice(one.end(), waiting_, waiting_.begin());
    ++putting_;
    lock.Unlock();
    const PutOutcome outcome = PutOrDrop(one.front());
    one.clear();
    lock.Lock();
    --putting_;
    if (outcome == PutOutcome::kKept) ++counts_.kept;
    if (outcome == PutOutcome::kDropped) ++counts_.dropped;
  }
  if (putting_ == 0) changed_.NotifyAll();
}

PutOutcome AsyncPuts::PutOrDrop(const AsyncWrite& write) const {
  try {
    return put_(write);
  } catch (const std::bad_alloc&) {
    return PutOutcome::kDropped;
  }
}

}  // namespace kvcake
