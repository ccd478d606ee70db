// Chunks on their way to one tier.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "kv/page_pool.h"
#include "store/tier.h"

namespace kvcake {

struct WriteQueueOptions {
  size_t queue_max = 4096;  // chunks that wait or are being written
  int threads = 8;
  Seconds patience{60};  // with a tier whose writes do not return
};

struct WriteQueueStats {
  uint64_t written = 0;
  uint64_t failed = 0;
  uint64_t dropped_full = 0;    // the queue was
  uint64_t dropped_wanted = 0;  // their pages were
  uint64_t queued = 0;          // now
  uint64_t writing = 0;         // now
};

// A few threads begin to write queued pages in order, so that a disk has work while one chunk is
// hashed, created or renamed; a queued page stays referenced until it is written. The queue is
// bounded: when it is full the chunk that is worth least is dropped and counted, never waited for.
// A chunk is worth more the later it is in its prompt: it takes longer to compute. Thread-safe.
class WriteQueue {
 public:
  struct Item {
    ChunkKey key, parent;
    int position = 0;  // in its prompt, in chunks
    NumericPath path = NumericPath::kUnknown;
    PageHandle page;  // published: it does not change any more
  };
  using PagePredicate = std::function<bool(PageId)>;

  // Both outlive it.
  WriteQueue(Tier& tier, const PagePool& pool, WriteQueueOptions options);
  // Writes what is queued, then stops; waits for writes that have begun, whose pages they hold.
  ~WriteQueue();
  WriteQueue(const WriteQueue&) = delete;
  WriteQueue& operator=(const WriteQueue&) = delete;

  void Add(Item item);
  // Gives up the chunk that is worth least of those that have not begun to be written and whose
  // page the caller wants; counts it as dropped. Its page; empty when there is none.
  PageHandle DropLeast(const PagePredicate& wanted);
  // It waits, and has not begun to be written.
  bool Waits(PageId page) const;
  // Returns when everything queued so far is written, or has failed; false, with a warning, when
  // nothing has been for options.patience.
  bool Flush();
  WriteQueueStats Stats() const;

 private:
  void Loop() EXCLUDES(mutex_);
  Item TakeLeast(const PagePredicate& wanted) REQUIRES(mutex_);
  bool done() const REQUIRES(mutex_) { return queue_.empty() && writing_ == 0; }

  // Constant after construction.
  Tier& tier_;
  const PagePool& pool_;
  const WriteQueueOptions options_;

  mutable Mutex mutex_;
  CondVar changed_;
  std::deque<Item> queue_ GUARDED_BY(mutex_);
  size_t writing_ GUARDED_BY(mutex_) = 0;  // items taken from the queue and not written yet
  uint64_t ended_ GUARDED_BY(mutex_) = 0;  // items written or failed
  WriteQueueStats stats_ GUARDED_BY(mutex_);
  bool stop_ GUARDED_BY(mutex_) = false;

  std::vector<std::thread> threads_;
};

}  // namespace kvcake
