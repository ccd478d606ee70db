// What the kernels of attention on CUDA share: tasks, instructions, and how the sums of partials
// are merged and finished.
#pragma once

#include <cmath>
#include <cstdint>

#include "ops/attention.h"

namespace kvcake::cuda {

constexpr int kTileRows = 64;
constexpr int kTileThreads = 2 * kTileRows;  // 16 rows a warp

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
  int kv_heads = 0;
  int group = 0;
  int head_dim = 0;
  int padded_dim = 0;
};

constexpr __host__ __device__ int SumsStride(int padded_dim) { return padded_dim + 2; }

// ---- instructions ----

__device__ __forceinline__ float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// The lower half holds `low`.
__device__ __forceinline__ uint32_t PackBf16(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

__device__ __forceinline__ float RoundToBf16(float x) {
  return __uint_as_float(PackBf16(x, 0.0f) << 16);
}

__device__ __forceinline__ uint32_t SharedAddress(const void* shared) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
}

// Enqueues a copy of 16 bytes, or of zeros: then nothing is read.
__device__ __forceinline__ void CopyAsync(void* shared, const void* global, bool read) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(SharedAddress(shared)),
               "l"(global), "r"(read ? 16 : 0)
               : "memory");
}

__device__ __forceinline__ void CommitCopies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// Until all but the last kGroups commits of this thread have been done.
template <int kGroups>
__device__ __forceinline__ void WaitForCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
}

// Four 8 x 8 matrices, whose rows lanes 0-7, 8-15, 16-23 and 24-31 point to.
__device__ __forceinline__ void LoadMatrices(const uint16_t* row, uint32_t (&to)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(SharedAddress(row))
               : "memory");
}

__device__ __forceinline__ void LoadTransposed(const uint16_t* row, uint32_t (&to)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(SharedAddress(row))
               : "memory");
}

// c[16][8] += a[16][16] x b[16][8]
__device__ __forceinline__ void MultiplyAdd(const uint4& a, uint32_t b0, uint32_t b1,
                                            float (&c)[4]) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}

// ---- sums ----

// Of one row: scores are powers of two, and weights 2^(score - max).
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

__device__ __forceinline__ int RowsOf(const AttentionTask& task) {
  return min(kTileRows, task.rows - task.row);
}

// Of one row of the tile, from the head's first dimension on.
__device__ __forceinline__ float* SumsOf(const AttentionArgs& args, const AttentionTask& task,
                                         int kv_head, int partial, int row) {
  const int64_t tile = static_cast<int64_t>(kv_head) * task.partials + partial;
  return args.sums + (task.sums + tile * RowsOf(task) + row) * SumsStride(args.padded_dim);
}

__device__ __forceinline__ uint16_t* OutOf(const AttentionArgs& args, const AttentionTask& task,
                                           int kv_head, int row) {
  const int at = task.row + row, token = at / args.group, head = at % args.group;
  return args.out + (static_cast<int64_t>(task.out_row) + token) * args.out_stride +
         (static_cast<int64_t>(kv_head) * args.group + head) * args.head_dim;
}

}  // namespace kvcake::cuda
