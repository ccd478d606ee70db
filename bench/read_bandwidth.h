// How fast the memory that kernels read is read: the yardstick of decoding.
#pragma once

#include <cstdint>

#include "ops/compute.h"

namespace kvcake::bench {

class ReadBandwidth {
 public:
  // Takes memory where the path reads its own: much more than fits any cache.
  explicit ReadBandwidth(NumericPath path, uint64_t bytes = 1ull << 30);

  // Reads it once with all workers of the pool side by side, or on CUDA several times: bytes a
  // second.
  double Measure(const Compute& compute);

 private:
  const Buffer buffer_, sum_;  // what was read, so that it is
  bool touched_ = false;
};

}  // namespace kvcake::bench
