// Rings in shared memory that some warps fill and others read.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace kvcake::cuda {

// A slot of a ring, and the parity of the phase in which its barrier says that it is filled.
struct RingPlace {
  int slot = 0;
  uint32_t phase = 0;

  __device__ __forceinline__ void Next(int slots) {
    if (++slot < slots) return;
    slot = 0;
    phase ^= 1;
  }
  // Next(2).
  __device__ __forceinline__ void NextOfTwo() {
    phase ^= slot;
    slot ^= 1;
  }
};

}  // namespace kvcake::cuda
