#include "lib/async_puts.h"

#include <utility>

#include "lib/cache.h"

namespace kvcake {

void AsyncPuts::Add(std::vector<AsyncWrite> writes) {
  {
    MutexLock lock(mutex_);
    ++pending_;
  }
  thread_.Soon([this, writes = std::move(writes)] {
    const PutCounts counts = put_(writes);
    MutexLock lock(mutex_);
    counts_.kept += counts.kept;
    counts_.dropped += counts.dropped;
    --pending_;
    changed_.NotifyAll();
  });
}

PutCounts AsyncPuts::Wait() {
  MutexLock lock(mutex_);
  while (pending_ > 0) changed_.Wait(mutex_);
  return std::exchange(counts_, {});
}

}  // namespace kvcake
