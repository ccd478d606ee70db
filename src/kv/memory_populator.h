// Commits memory shortly before it is used for the first time, so that nobody who computes, copies
// or loads into it waits for the kernel to clear it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <thread>
#include <vector>

#include "base/mutex.h"

namespace kvcake {

// Thread-safe. Its thread takes no CPU from one that runs.
class MemoryPopulator {
 public:
  // Commits memory and keeps what it holds; false where that cannot be done: no more is, then.
  using Populate = std::function<bool(std::span<std::byte>)>;

  // Segments, which outlive it, are used one after the other; `ahead_bytes` more are committed.
  MemoryPopulator(std::vector<std::span<std::byte>> segments, uint64_t ahead_bytes,
                  Populate populate);
  // Waits for the large page that is being committed.
  ~MemoryPopulator();
  MemoryPopulator(const MemoryPopulator&) = delete;
  MemoryPopulator& operator=(const MemoryPopulator&) = delete;

  // The first `bytes` of all segments are used: what of them is not committed is left to their
  // user.
  void Used(uint64_t bytes) EXCLUDES(mutex_);

 private:
  void Loop() EXCLUDES(mutex_);
  bool PopulateSegment(std::span<std::byte> segment) EXCLUDES(mutex_);

  // Constant after construction.
  const std::vector<std::span<std::byte>> segments_;
  const uint64_t ahead_bytes_;
  const Populate populate_;

  Mutex mutex_;
  CondVar changed_;
  uint64_t used_ GUARDED_BY(mutex_) = 0;
  uint64_t next_ GUARDED_BY(mutex_) = 0;  // where the thread goes on
  bool stop_ GUARDED_BY(mutex_) = false;

  std::thread thread_;
};

}  // namespace kvcake
