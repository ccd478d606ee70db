// CUDA_CHECK: for CUDA calls that fail only when the device or this program is broken.
#pragma once

#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>

#define CUDA_CHECK(call)                                                       \
  do {                                                                         \
    if (const cudaError_t error = (call); error != cudaSuccess) [[unlikely]] { \
      std::fprintf(stderr, "%s:%d: CUDA: %s: %s\n", __FILE__, __LINE__, #call, \
                   cudaGetErrorString(error));                                 \
      std::abort();                                                            \
    }                                                                          \
  } while (false)
