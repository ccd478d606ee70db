// Keeps new chunks in a tier without anybody waiting for it.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "kv/page_pool.h"
#include "store/tier.h"

namespace kvcake {

struct WriteBehindStats {
  uint64_t written = 0;
  uint64_t failed = 0;
  uint64_t dropped = 0;  // the queue was full
};

// A few threads begin to write queued pages in order, so that the disk has work while one chunk is
// hashed, created or renamed; a queued page stays referenced until it is written. The queue is
// bounded: when it is full a chunk is dropped and counted, never waited for. Thread-safe.
class WriteBehind {
 public:
  WriteBehind(Tier& tier, const PagePool& pool, size_t queue_max, int threads = 8);
  // Writes what is queued, then stops.
  ~WriteBehind();
  WriteBehind(const WriteBehind&) = delete;
  WriteBehind& operator=(const WriteBehind&) = delete;

  // `page` is published: it does not change any more.
  void Enqueue(const ChunkKey& key, const ChunkKey& parent, NumericPath path, PageHandle page);
  // Gives up what has not begun to be written, and counts it as dropped.
  void DropQueued();
  // Returns when everything queued so far is written, or has failed.
  void Flush();
  WriteBehindStats Stats() const;

 private:
  struct Item {
    ChunkKey key, parent;
    NumericPath path;
    PageHandle page;
  };
  void Loop();

  // Constant after construction.
  Tier& tier_;
  const PagePool& pool_;
  const size_t queue_max_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  std::deque<Item> queue_;
  size_t writing_ = 0;  // items taken from the queue and not written yet
  WriteBehindStats stats_;
  bool stop_ = false;

  std::vector<std::thread> threads_;
};

}  // namespace kvcake
