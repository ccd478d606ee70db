// Products of few rows, which wait for the weights to be read. Private to this room.
#pragma once

#include <cstdint>

#include "ops/compute.h"
#include "ops/cuda_device.h"
#include "ops/elementwise.h"
#include "ops/packed_matrix.h"

namespace kvcake::cuda {

// Where a product goes, and what is done to it on its way.
struct ProductOut {
  enum class Kind {
    kSet,     // f32[rows][stride] = sums + bias
    kAdd,     // f32[rows][stride] += sums + bias
    kGelu,    // bf16[rows][stride] = gelu(bf16(sums) + bias)
    kSwiGlu,  // bf16[rows][stride] = silu(bf16(gate's sums) + bias) * (bf16(up's sums) + bias)
    kQkv,     // what RopeAndStoreKv makes of sums + bias: queries in f32[rows][stride]
  };
  Kind kind = Kind::kSet;
  void* data = nullptr;  // on the device, borrowed
  int64_t stride = 0;
  // kQkv's.
  QkvShape shape = {};
  const float* rope = nullptr;    // [rows][head_dim]
  const KvSlot* slots = nullptr;  // [rows]
  KvStride kv_stride = {};
  float query_scale = 0;
};

// Enqueues a x w^T, or gathers it (JoinProducts), for up to four rows of a, on devices of compute
// capability 9.0 or above. False, and nothing is done, elsewhere, for more rows, where w is too
// small to keep all of a device's multiprocessors busy, and where rows are so long that shared
// memory has too little room besides.
bool MultiplyFewRows(CudaDevice& device, const Activations& a, const PackedMatrix& w,
                     const ProductOut& out);

}  // namespace kvcake::cuda
