// Chunks that a thread of their own puts, while their caller goes on.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/callback_thread.h"
#include "base/mutex.h"

namespace kvcake {

struct AsyncWrite;

struct PutCounts {
  uint64_t kept = 0;
  uint64_t dropped = 0;  // for want of memory
};

// Thread-safe. The destructor puts what is left.
class AsyncPuts {
 public:
  // Puts some, on the thread, and says what became of them.
  using PutAll = std::function<PutCounts(const std::vector<AsyncWrite>&)>;
  explicit AsyncPuts(PutAll put) : put_(std::move(put)) {}
  AsyncPuts(const AsyncPuts&) = delete;
  AsyncPuts& operator=(const AsyncPuts&) = delete;

  // Returns at once; batches are put in order.
  void Add(std::vector<AsyncWrite> writes) EXCLUDES(mutex_);
  // Returns when nothing is left to be put: what was, since the last call.
  PutCounts Wait() EXCLUDES(mutex_);

 private:
  const PutAll put_;
  Mutex mutex_;
  CondVar changed_;
  uint64_t pending_ GUARDED_BY(mutex_) = 0;  // batches
  PutCounts counts_ GUARDED_BY(mutex_);
  CallbackThread thread_;  // last: it ends before the rest goes
};

}  // namespace kvcake
