// Chunks on their way to one tier.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "kv/page_pool.h"
#include "store/tier.h"

namespace kvcake {

struct WriteQueueOptions {
  size_t queue_max = 4096;  // chunks waiting to be written
  int threads = 8;
  Seconds patience{60};  // with a tier whose writes do not return
};

struct WriteQueueStats {
  uint64_t written = 0;
  uint64_t failed = 0;
  uint64_t dropped = 0;    // the queue was full
  uint64_t in_flight = 0;  // queued or being written now
};

// A few threads begin to write queued pages in order, so that a disk has work while one chunk is
// hashed, created or renamed; a queued page stays referenced until it is written. The queue is
// bounded: when it is full a chunk is dropped and counted, never waited for. Thread-safe.
class WriteQueue {
 public:
  struct Item {
    ChunkKey key, parent;
    NumericPath path = NumericPath::kUnknown;
    PageHandle page;  // published: it does not change any more
  };

  // Both outlive it.
  WriteQueue(Tier& tier, const PagePool& pool, WriteQueueOptions options);
  // Writes what is queued, then stops; waits for writes that have begun, whose pages they hold.
  ~WriteQueue();
  WriteQueue(const WriteQueue&) = delete;
  WriteQueue& operator=(const WriteQueue&) = delete;

  void Add(Item item);
  // Gives up what has not begun to be written, and counts it as dropped; returns how many.
  size_t Drop();
  // Returns when everything queued so far is written, or has failed; false, with a warning, when
  // nothing has been for options.patience.
  bool Flush();
  WriteQueueStats Stats() const;

 private:
  void Loop();

  // Constant after construction.
  Tier& tier_;
  const PagePool& pool_;
  const WriteQueueOptions options_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  std::deque<Item> queue_;
  size_t writing_ = 0;  // items taken from the queue and not written yet
  uint64_t ended_ = 0;  // of them, written or failed
  WriteQueueStats stats_;
  bool stop_ = false;

  std::vector<std::thread> threads_;
};

}  // namespace kvcake
