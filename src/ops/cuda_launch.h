// How kernels are started.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <utility>

#include "ops/cuda_check.h"
#include "ops/cuda_device.h"

namespace kvcake::cuda {

struct Blocks {
  Blocks(dim3 grid, int threads, int shared_bytes = 0)
      : grid(grid), threads(threads), shared_bytes(shared_bytes) {}
  Blocks(int64_t count, int threads, int shared_bytes = 0)
      : Blocks(dim3(static_cast<unsigned>(count)), threads, shared_bytes) {}

  dim3 grid;
  int threads;  // of each
  int shared_bytes;
};

// Enqueues a kernel.
template <typename... Parameters, typename... Arguments>
void Launch(const CudaDevice& device, const Blocks& blocks, void (*kernel)(Parameters...),
            Arguments&&... arguments) {
  cudaLaunchConfig_t config = {};
  config.gridDim = blocks.grid;
  config.blockDim = dim3(blocks.threads);
  config.dynamicSmemBytes = blocks.shared_bytes;
  config.stream = device.stream();
  CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...));
}

}  // namespace kvcake::cuda
