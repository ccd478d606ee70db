// SiLU and GELU, as every kernel here computes them.
#pragma once

#include <cuda_runtime.h>

namespace kvcake::cuda {

__device__ __forceinline__ float SiluOf(float x) { return x / (1.0f + __expf(-x)); }

// By the error function.
__device__ __forceinline__ float GeluOf(float x) {
  return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f));
}

}  // namespace kvcake::cuda
