// Tensors in the device's memory of which boxes are copied to shared memory (TMA).
#pragma once

#include <cuda.h>

#include <array>
#include <cstdint>

namespace kvcake::cuda {

constexpr int kTensorRank = 5;

// For kernels, as a __grid_constant__ parameter.
using TensorMap = CUtensorMap;

// Where a box's first element is, the innermost dimension first.
struct BoxCoordinates {
  int of[kTensorRank];
};

// Elements of bf16, the innermost dimension first.
struct TensorShape {
  const void* data = nullptr;                // a multiple of 16
  std::array<uint64_t, kTensorRank> size;    // elements
  std::array<uint64_t, kTensorRank> stride;  // bytes, multiples of 16 but for [0], which is 2
  // The first is 64: 128 bytes, whose eight pieces of 16 are permuted by the number of the row,
  // modulo 8 (CU_TENSOR_MAP_SWIZZLE_128B).
  std::array<uint32_t, kTensorRank> box;
};

// Needs a device of compute capability 9.0; ends the process where CUDA refuses the shape.
TensorMap MapTensor(const TensorShape& shape);

}  // namespace kvcake::cuda
