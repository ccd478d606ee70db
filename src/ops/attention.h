// Causal attention over pages: bf16 KV, f32 accumulation, grouped-query heads share their tiles.
//
// A row's result is a function of its query and of the keys and values at positions up to its own,
// to the bit: keys are taken in blocks at absolute positions (Kernels::attention_block), blocks are
// summed into partials of kAttentionPartial positions, and partials merge in ascending order,
// whatever the slice, the batch, the chunk size or the number of threads. Slots past a row's
// position may hold anything, NaN included.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "kv/page_pool.h"
#include "ops/compute.h"

namespace kvcake {

constexpr int kAttentionBlock = 64;  // of most paths
constexpr int kAttentionPartial = 1024;
// The most query heads that share one KV head, and the largest head.
constexpr int kAttentionGroupMax = 96;
constexpr int kAttentionHeadDimMax = 256;

// What multiplies on CUDA. Results of different ones are the same up to rounding.
enum class AttentionBackend {
  kAuto,   // kWgmma where it can be
  kWgmma,  // for compute capability 9.0, and heads of up to 128 dimensions
  kMma,    // mma.sync
};

struct AttentionShape {
  int heads = 0;     // a multiple of kv_heads
  int kv_heads = 0;  // at least heads / kAttentionGroupMax
  int head_dim = 0;  // a multiple of 16
  // [heads], or empty. With ALiBi, head h's score of the key at position p grows by
  // bf16(bf16(slopes[h]) * bf16(p)) / sqrt(head_dim).
  std::vector<float> alibi_slopes = {};
};

// Consecutive queries of one sequence, whose keys and values are in the pages already.
struct AttentionSlice {
  // [rows][q_stride], heads first; scaled by 1/sqrt(head_dim), rotated. 8-byte aligned.
  const float* q = nullptr;
  int64_t rows = 0;
  int64_t start = 0;  // position of the first row
  // No operation of the step writes the first so many keys and values: on CUDA they may be read
  // before what was enqueued earlier has been done. That is not always `start`: a prompt's last row
  // may attend alone to what its step has computed.
  int64_t old_keys = 0;
  std::span<const PageId> pages;  // page of chunk i at [i]; covers [0, start + rows)
  int64_t out_row = 0;            // of the first row
  // Beyond start + rows: the blocks up to here are computed too, by every row, and dropped, as by
  // kernels that mask a full rectangle. The pages cover them.
  int64_t dense_keys = 0;
};

struct AttentionLimits {
  int64_t rows = 0;  // of all slices of a plan
  int64_t slices = 0;
  // Room for the sums of tiles that CUDA splits. Those that find none left are computed whole.
  int64_t sums_bytes = 128 << 20;
};

// What a run of attention computes: slices, and how they are shared out. Of the Attention that made
// it.
class AttentionPlan {
 public:
  virtual ~AttentionPlan() = default;
  // Forgets what was planned before. Borrows the slices' pages and queries until the next Set. On
  // CUDA it is enqueued, so that between two calls lies a Compute::Wait.
  virtual void Set(std::span<const AttentionSlice> slices) = 0;
  // What decides which kernels Run enqueues, and what the plan adds to their arguments: where it is
  // equal, a run can be replayed. Empty on the CPU.
  virtual std::vector<uint64_t> launches() const = 0;
};

// One layer's attention for a batch. Holds the sums of partials while decoding; chunks of
// the pool hold a multiple of 16 tokens.
class Attention {
 public:
  // Makes one of `compute`'s kind; borrows it and the pool. Plans keep to the limits, and no slice
  // has more pages than the pool. On CUDA, CheckAttentionBackend has been asked.
  static std::unique_ptr<Attention> Create(const Compute& compute, const AttentionShape& shape,
                                           const PagePool& pool, const AttentionLimits& limits,
                                           AttentionBackend backend = AttentionBackend::kAuto);
  virtual ~Attention() = default;

  virtual std::unique_ptr<AttentionPlan> NewPlan() = 0;
  // q_stride: even, as CUDA's kernels read a query's floats in pairs. out: [..][heads * head_dim],
  // ready to enter the output projection.
  virtual void Run(const AttentionPlan& plan, int layer, int64_t q_stride,
                   const Activations& out) = 0;
};

// kUnsupported if heads of so many dimensions cannot have it on the path; to the CPU's it means
// nothing.
Status CheckAttentionBackend(AttentionBackend backend, NumericPath path, int head_dim);

}  // namespace kvcake
