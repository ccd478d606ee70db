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
  int32_t old_keys = 0;      // of the slice
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

// What one thread has of 16 x 8 products: two columns, a pair beside each other, of two rows, eight
// apart: [0] and [1], then [2] and [3].
template <int kColumns>
struct RowSums {
  float values[kColumns][4];
  RowState rows[2];

  __device__ __forceinline__ void Clear() {
#pragma unroll
    for (auto& columns : values) {
#pragma unroll
      for (float& value : columns) value = 0.0f;
    }
    rows[0] = rows[1] = RowState();
  }
};

// Ends a partial: adds up what a row's four threads have.
__device__ __forceinline__ void FinishPart(RowState (&rows)[2]) {
#pragma unroll
  for (RowState& state : rows) {
    state.sum = __fadd_rn(state.sum, __shfl_xor_sync(0xffffffff, state.sum, 1));
    state.sum = __fadd_rn(state.sum, __shfl_xor_sync(0xffffffff, state.sum, 2));
  }
}

// Ends a partial, and adds it to the total of those before it; the `first` is the total.
template <int kColumns>
__device__ __forceinline__ void AddPart(bool first, RowSums<kColumns>& part,
                                        RowSums<kColumns>& total) {
  FinishPart(part.rows);
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    if (first) continue;
    const MergeScale scale = MergeState(part.rows[row], &total.rows[row]);
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
#pragma unroll
      for (int i = 2 * row; i < 2 * row + 2; ++i) {
        total.values[n][i] = MergeValue(part.values[n][i], total.values[n][i], scale);
      }
    }
  }
  if (first) total = part;
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

// Merges the partials of a split tile: two dimensions of a row, from `dim` on, to `out`.
__device__ __forceinline__ void MergePair(const AttentionArgs& args, const AttentionTask& task,
                                          int kv_head, int row, int dim) {
  constexpr int kAtOnce = 8;  // loads that are under way
  const int padded = args.padded_dim;
  const int64_t stride = int64_t{RowsOf(args, task)} * SumsStride(padded);  // between partials
  const float* const sums = SumsOf(args, task, kv_head, 0, row);
  // What other multiprocessors have written is in L2, and here perhaps not.
  const auto load = [sums, stride](int partial, int at) {
    return __ldcg(reinterpret_cast<const float2*>(sums + partial * stride + at));
  };
  const float2 state = load(0, padded);
  float2 value = load(0, dim);
  RowState total{state.x, state.y};
  for (int first = 1; first < task.partials; first += kAtOnce) {
    float2 states[kAtOnce], values[kAtOnce];
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      const int partial = min(first + k, task.partials - 1);
      states[k] = load(partial, padded);
      values[k] = load(partial, dim);
    }
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      if (first + k >= task.partials) break;
      const MergeScale scale = MergeState({states[k].x, states[k].y}, &total);
      value.x = MergeValue(values[k].x, value.x, scale);
      value.y = MergeValue(values[k].y, value.y, scale);
    }
  }
  *reinterpret_cast<uint32_t*>(OutOf(args, task, kv_head, row) + dim) =
      PackBf16(Finished(value.x, total), Finished(value.y, total));
}

}  // namespace kvcake::cuda
