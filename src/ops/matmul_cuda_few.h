// Products of few rows, which wait for the weights to be read. Private to this room.
#pragma once

#include <cstdint>

#include "ops/compute.h"
#include "ops/cuda_device.h"
#include "ops/packed_matrix.h"

namespace kvcake::cuda {

constexpr int64_t kFewRowsMax = 64;

// Where a product goes, and what is done to it on its way.
struct ProductOut {
  enum class Kind {
    kSet,     // f32[rows][stride] = sums + bias
    kAdd,     // f32[rows][stride] += sums + bias
    kGelu,    // bf16[rows][stride] = gelu(bf16(sums) + bias)
    kSwiGlu,  // bf16[rows][stride] = silu(bf16(gate's sums) + bias) * (bf16(up's sums) + bias)
  };
  Kind kind = Kind::kSet;
  void* data = nullptr;
  int64_t stride = 0;
};

// Enqueues a x w^T for up to kFewRowsMax rows of a. A row's result depends on that row alone, to
// the bit: its sums are in an order that follows from k.
void MultiplyFewRows(CudaDevice& device, const Activations& a, const PackedMatrix& w,
                     const ProductOut& out);

}  // namespace kvcake::cuda
