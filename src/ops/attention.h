// Causal attention over pages: bf16 KV, f32 accumulation, grouped-query heads share their tiles.
//
// A row's result is a function of its query and of the keys and values at positions up to its own,
// to the bit: keys are taken in blocks of kAttentionBlock at absolute positions, blocks are summed
// into partials of kAttentionPartial positions, and partials merge in ascending order, whatever the
// slice, the batch, the chunk size or the number of threads. Slots past a row's position may hold
// anything, NaN included.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kv/page_pool.h"
#include "ops/buffer.h"
#include "ops/compute.h"

namespace kvcake {

constexpr int kAttentionBlock = 64;
constexpr int kAttentionPartial = 1024;
// The most query heads that share one KV head, and the largest head.
constexpr int kAttentionGroupMax = 96;
constexpr int kAttentionHeadDimMax = 256;

struct AttentionShape {
  int heads = 0;     // a multiple of kv_heads
  int kv_heads = 0;  // at least heads / kAttentionGroupMax
  int head_dim = 0;  // a multiple of 16
  // [heads], or empty. With ALiBi, head h's score of the key at position p grows by
  // bf16(bf16(slopes[h]) * bf16(p)) / sqrt(head_dim).
  std::vector<float> alibi_slopes = {};
};

// Consecutive queries of one sequence. Their keys and values are in the pages already.
struct AttentionSlice {
  const float* q = nullptr;  // [rows][q_stride], heads first; scaled by 1/sqrt(head_dim), rotated
  int64_t rows = 0;
  int64_t start = 0;              // position of the first row
  std::span<const PageId> pages;  // page of chunk i at [i]; covers [0, start + rows)
  int64_t out_row = 0;            // of the first row
  // Beyond start + rows: the blocks up to here are computed too, by every row, and dropped, as by
  // kernels that mask a full rectangle. The pages cover them.
  int64_t dense_keys = 0;
};

// One layer's attention for a batch. Holds the sums of partials while decoding; chunks of
// the pool hold a multiple of 16 tokens.
class Attention {
 public:
  Attention(const Compute& compute, const AttentionShape& shape, const PagePool& pool);

  // out: [..][heads * head_dim], ready to enter the output projection.
  void Run(int layer, std::span<const AttentionSlice> slices, int64_t q_stride,
           const Activations& out);

 private:
  // Some tokens of a slice for one KV head, or one partial of one token for some KV heads.
  struct Task {
    int slice = 0;
    int kv_head = 0;  // the first
    int kv_heads = 1;
    int64_t token = 0;  // in the slice
    int64_t tokens = 0;
    int64_t partial = -1;     // -1: all of them
    int64_t slot = 0;         // of a single partial's sums, for the first head
    int64_t slot_stride = 0;  // to the next head's
    int64_t cost = 0;         // queries times keys
  };
  // The partials of one token for one KV head, in consecutive slots.
  struct Merge {
    int slice = 0;
    int kv_head = 0;
    int64_t slot = 0;
    int64_t partials = 0;
  };

  void PlanTasks(std::span<const AttentionSlice> slices);
  // Of a slice of one token. False when there are not enough slots left.
  bool PlanPartials(int slice, int64_t partials, int heads_per_task, int64_t* slots);
  void RunTask(const Task& task, const AttentionSlice& slice, int layer, int64_t q_stride,
               const Activations& out, int worker) const;
  void RunMasked(const Task& task, const AttentionSlice& slice, int layer, int64_t q_stride,
                 int worker) const;
  void RunPartial(const Task& task, const AttentionSlice& slice, int layer, int worker) const;
  void RunMerge(const Merge& merge, const AttentionSlice& slice, const Activations& out) const;

  // Constant after construction.
  const Compute& compute_;
  const AttentionShape shape_;
  const PagePool& pool_;
  const int64_t slot_floats_;
  const int64_t slots_;

  // The plan of one Run; kept for their memory.
  std::vector<Task> tasks_;
  std::vector<Merge> merges_;
  const Buffer sums_;         // [slot][heads per KV head][SumsStride(head_dim)] f32
  const Buffer masked_sums_;  // [worker][kAttendRowsMax][SumsStride(head_dim)] f32
};

}  // namespace kvcake
