// SiLU, GELU and rotations, as every kernel here computes them.
#pragma once

#include <cuda_runtime.h>

namespace kvcake::cuda {

__device__ __forceinline__ float SiluOf(float x) { return x / (1.0f + __expf(-x)); }

// By the error function.
__device__ __forceinline__ float GeluOf(float x) {
  return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f));
}

// Two of a head's dimensions that rotate together, RoPE.
__device__ __forceinline__ float2 Rotated(float x, float y, float cos, float sin) {
  return {__fmaf_rn(x, cos, -__fmul_rn(y, sin)), __fmaf_rn(y, cos, __fmul_rn(x, sin))};
}

}  // namespace kvcake::cuda
