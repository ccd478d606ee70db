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

inline cudaLaunchConfig_t ConfigOf(CudaDevice& device, const Blocks& blocks) {
  cudaLaunchConfig_t config = {};
  config.gridDim = blocks.grid;
  config.blockDim = dim3(blocks.threads);
  config.dynamicSmemBytes = blocks.shared_bytes;
  config.stream = device.stream();
  return config;
}

// Enqueues a kernel, which runs when all before it has ended.
template <typename... Parameters, typename... Arguments>
void Launch(CudaDevice& device, const Blocks& blocks, void (*kernel)(Parameters...),
            Arguments&&... arguments) {
  const cudaLaunchConfig_t config = ConfigOf(device, blocks);
  CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...));
}

// What LaunchEarly and LaunchEarlyTogether do.
template <typename... Parameters, typename... Arguments>
void EnqueueEarly(CudaDevice& device, const Blocks& blocks, bool together,
                  void (*kernel)(Parameters...), Arguments&&... arguments) {
  cudaLaunchConfig_t config = ConfigOf(device, blocks);
  cudaLaunchAttribute attributes[3] = {};
  config.attrs = attributes;
  if (device.capability() >= 90) {
    cudaLaunchAttribute& early = attributes[config.numAttrs++];
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    // The same division of L1 cache and shared memory for all: a multiprocessor that has another
    // has to be empty before it takes a block, which then would not start early.
    cudaLaunchAttribute& carveout = attributes[config.numAttrs++];
    carveout.id = cudaLaunchAttributePreferredSharedMemoryCarveout;
    carveout.val.sharedMemCarveout = cudaSharedmemCarveoutMaxShared;
  }
  if (together) {
    cudaLaunchAttribute& cooperative = attributes[config.numAttrs++];
    cooperative.id = cudaLaunchAttributeCooperative;
    cooperative.val.cooperative = 1;
  }
  CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...));
}

// Enqueues a kernel whose blocks may start while the kernel before it runs, if that one lets them
// (programmatic dependent launch, of compute capability 9.0). Every thread of it calls
// WaitForEarlierKernels, whatever else it does, and before that it touches only its registers and
// shared memory, and reads what was there when the step began: weights, the step's arrays, keys and
// values of earlier steps (AttentionSlice::old_keys). A step begins with copies of its arrays.
//
// So a kernel that has ended has waited for the one before it to end, as that one has, and so on:
// when WaitForEarlierKernels returns, all that was enqueued before has been done, as if nothing
// started early, however many kernels have let the next one start meanwhile. One that was enqueued
// by Launch, and a copy, begin when the kernel before them has ended: for them, too, that is when
// all before has. cuBLASLt's kernels do so as well, or wait like ours before they touch anything.
// What follows a copy does not start early.
template <typename... Parameters, typename... Arguments>
void LaunchEarly(CudaDevice& device, const Blocks& blocks, void (*kernel)(Parameters...),
                 Arguments&&... arguments) {
  EnqueueEarly(device, blocks, false, kernel, std::forward<Arguments>(arguments)...);
}
// The same, for blocks that wait for each other: none is left out as long as others are resident
// (a cooperative launch). They may be as many as multiprocessors have room for.
template <typename... Parameters, typename... Arguments>
void LaunchEarlyTogether(CudaDevice& device, const Blocks& blocks, void (*kernel)(Parameters...),
                         Arguments&&... arguments) {
  EnqueueEarly(device, blocks, true, kernel, std::forward<Arguments>(arguments)...);
}

}  // namespace kvcake::cuda
