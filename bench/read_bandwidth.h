// How fast this machine reads memory: the yardstick of decoding.
#pragma once

#include <cstdint>

#include "base/thread_pool.h"
#include "ops/buffer.h"

namespace kvcake::bench {

class ReadBandwidth {
 public:
  // Of memory to read: much more than fits any cache.
  explicit ReadBandwidth(uint64_t bytes = 1ull << 30);

  // Reads it once, all workers of the pool side by side: bytes a second.
  double Measure(ThreadPool& pool);

 private:
  const Buffer buffer_;
  bool touched_ = false;
  uint64_t sum_ = 0;  // of what was read, so that it is
};

}  // namespace kvcake::bench
