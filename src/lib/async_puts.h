// Chunks that a thread of their own puts, while their caller goes on.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <vector>

#include "base/callback_thread.h"
#include "base/mutex.h"

namespace kvcake {

struct AsyncWrite;

enum class PutOutcome {
  kKept,
  kHeld,     // there is one
  kDropped,  // for want of memory
};

struct PutCounts {
  uint64_t kept = 0;
  uint64_t dropped = 0;
};

// Thread-safe. The destructor puts what is left.
class AsyncPuts {
 public:
  // Called on the thread, and on those that wait; an std::bad_alloc is a drop.
  using Put = std::function<PutOutcome(const AsyncWrite&)>;
  explicit AsyncPuts(Put put) : put_(std::move(put)) {}
  AsyncPuts(const AsyncPuts&) = delete;
  AsyncPuts& operator=(const AsyncPuts&) = delete;

  // Returns at once; they are begun in order.
  void Add(std::vector<AsyncWrite> writes) EXCLUDES(mutex_);
  // Puts what the thread has not begun to, and returns when nothing is left to be put.
  void Drain() EXCLUDES(mutex_);
  // As Drain; what was put since the last call.
  PutCounts Wait() EXCLUDES(mutex_);

 private:
  void PutWaiting() EXCLUDES(mutex_);
  PutOutcome PutOrDrop(const AsyncWrite& write) const;

  const Put put_;
  Mutex mutex_;
  CondVar changed_;
  std::list<AsyncWrite> waiting_ GUARDED_BY(mutex_);
  int putting_ GUARDED_BY(mutex_) = 0;  // threads that do
  PutCounts counts_ GUARDED_BY(mutex_);
  CallbackThread thread_;  // last: it ends before the rest goes
};

}  // namespace kvcake
