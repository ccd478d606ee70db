// What the kernels of attention on CUDA share: tasks, and how the sums of partials are merged and
// finished.
#pragma once

#include <cmath>
#include <cstdint>

#include "ops/attention.h"
#include "ops/cuda_instructions.cuh"

namespace kvcake::cuda {

// A tile of a slice, for all KV heads; made by the host. One without rows is nothing to do.
struct AttentionTask {
  const float* q = nullptr;  // of the slice's first token
  int32_t pages = 0;         // where the list of the slice's pages begins
  int32_t start = 0;         // position of the slice's first token
  int32_t out_row = 0;       // of the slice's first token
  int32_t rows = 0;          // of the slice
  int32_t row = 0;           // of the slice, the tile's first
  int32_t partials = 0;      // that the tile's last row sees
  int32_t partial = -1;      // -1: all of them, to `out`; else this one, to `sums`
  int32_t keys = 0;          // of these partials
  int32_t sums = 0;          // the tile's first row in AttentionArgs::sums
  int32_t tile = 0;          // its number among the split ones of single tokens
};

// What the tasks of one run have in common.
struct AttentionArgs {
  const AttentionTask* tasks = nullptr;
  const PageId* pages = nullptr;
  const float* slopes = nullptr;   // [heads], nullptr without ALiBi
  const uint16_t* slab = nullptr;  // the layer's, in page 0
  int64_t page_elements = 0;       // from page to page
  int64_t plane_elements = 0;      // from K to V
  int64_t q_stride = 0;
  int64_t out_stride = 0;
  uint16_t* out = nullptr;
  // [KV head][partial][row of the tile] of each split tile: weighted values [padded_dim], then the
  // largest score, then the sum of the weights.
  float* sums = nullptr;
  int chunk_tokens = 0;
  int box_tokens = 0;  // of a chunk, that one copy takes
  int layer = 0;
  int kv_heads = 0;
  int group = 0;
  int head_dim = 0;
  int padded_dim = 0;
  int tile_rows = 0;
};

constexpr __host__ __device__ int SumsStride(int padded_dim) { return padded_dim + 2; }

// ---- sums ----

__device__ __forceinline__ float RoundToBf16(float x) {
  return __uint_as_float(PackBf16(x, 0.0f) << 16);
}

// What one row has come to: scores are powers of two, and weights 2^(score - max).
struct RowState {
  float max = -INFINITY;
  float sum = 0.0f;
};

struct MergeScale {
  float total;
  float part;
};

// Adds a later partial's state to the total's; returns by what to scale their values. A partial of
// which the row sees nothing changes nothing.
__device__ __forceinline__ MergeScale MergeState(const RowState& part, RowState* total) {
  const float max = fmaxf(total->max, part.max);
  const MergeScale scale = {Exp2(__fsub_rn(total->max, max)), Exp2(__fsub_rn(part.max, max))};
  total->sum = __fmaf_rn(part.sum, scale.part, __fmul_rn(total->sum, scale.total));
  total->max = max;
  return scale;
}

__device__ __forceinline__ float MergeValue(float part, float total, const MergeScale& scale) {
  return __fmaf_rn(part, scale.part, __fmul_rn(total, scale.total));
}

__device__ __forceinline__ float Finished(float value, const RowState& state) {
  return __fmaf_rn(value, __frcp_rn(state.sum), 0.0f);  // -0 becomes 0
}

// ---- rows ----

__device__ __forceinline__ int RowsOf(const AttentionArgs& args, const AttentionTask& task) {
  return min(args.tile_rows, task.rows - task.row);
}

// Where the sums of one row of the tile are, from the head's first dimension on.
__device__ __forceinline__ float* SumsOf(const AttentionArgs& args, const AttentionTask& task,
                                         int kv_head, int partial, int row) {
  const int64_t tile = static_cast<int64_t>(kv_head) * task.partials + partial;
  return args.sums + (task.sums + tile * RowsOf(args, task) + row) * SumsStride(args.padded_dim);
}

__device__ __forceinline__ uint16_t* OutOf(const AttentionArgs& args, const AttentionTask& task,
                                           int kv_head, int row) {
  const int at = task.row + row, token = at / args.group, head = at % args.group;
  return args.out + (static_cast<int64_t>(task.out_row) + token) * args.out_stride +
         (static_cast<int64_t>(kv_head) * args.group + head) * args.head_dim;
}

}  // namespace kvcake::cuda
