// Sums over the lanes of a warp.
#pragma once

#include <cuda_runtime.h>

namespace kvcake::cuda {

constexpr int kWarp = 32;

// Sums all lanes' values, in an order that is always the same; every lane gets the sum.
template <typename T>
__device__ T WarpSum(T value) {
  for (int lanes = kWarp / 2; lanes > 0; lanes /= 2) {
    value += __shfl_xor_sync(0xffffffff, value, lanes);
  }
  return value;
}

}  // namespace kvcake::cuda
