// Attention of a single token of a sequence over the keys of a partial, by mma.sync on every
// device. Device code of attention_cuda_decode.cu.
//
// A row adds up to the bits of the tiles of attention_cuda_rows.cuh: per block of 64 keys the same
// chains of products, and from block to block the same steps of online softmax. Only the sums of
// values have to go from block to block, so the rest is done side by side:
// 1. each warp scores blocks of its own;
// 2. when the largest scores of all blocks are known, each warp turns its scores into weights;
// 3. each warp walks through all blocks for a few dimensions of the result.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/attention_cuda_decode_ring.cuh"
#include "ops/attention_cuda_softmax.cuh"
#include "ops/attention_cuda_sums.cuh"

namespace kvcake::cuda {

struct DecodeArgs {
  AttentionArgs run;  // its tiles have 8 or 16 rows
  // [tile of several partials][KV head][block of threads]: how many partials' sums are there. Zeros
  // before and after each run.
  uint32_t* arrived = nullptr;
  int slots = 0;  // of the ring
};

constexpr int kDecodeRowsMax = 16;  // of a tile: what one product has

// One thread's share of a tile: of 16 x 8 products two columns, column_ and the next, of the rows
// row_ and row_ + 8.
template <typename Shape>
class Decode {
 public:
  __device__ __forceinline__ Decode(const DecodeArgs& args, const AttentionTask& task, int kv_head,
                                    int out, std::byte* shared);

  // To the end. All threads of the block.
  __device__ __forceinline__ void Run();

 private:
  static constexpr int kDim = Shape::kDim, kOut = Shape::kOut, kWarps = Shape::kWarps;
  static constexpr int kTiles = Shape::kTiles, kKeys = Shape::kKeys;
  using Scores = float[kAttentionBlock / 8][4];  // of a block, 8 keys each
  using Sums = RowSums<kTiles>;

  // Where a block's state of one row lies.
  __device__ __forceinline__ int At(int block, int row) const { return block * rows_ + row; }
  __device__ __forceinline__ uint2& Weights(int half, int block, int step) const {
    return weights_[((half * Shape::kBlocks + block) * Shape::kSteps + step) * 32 + lane_];
  }

  __device__ __forceinline__ void LoadQueries() const;
  __device__ __forceinline__ void Multiply(const uint16_t* keys, float (*scores)[4]) const;
  static __device__ __forceinline__ void Take(const Scores& from, Scores& to) {
#pragma unroll
    for (int n = 0; n < kAttentionBlock / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) to[n][i] = from[n][i];
    }
  }
  __device__ __forceinline__ void Score(Scores (&scores)[Shape::kBlocksOfWarp]);
  __device__ __forceinline__ void AddAlibi(int block, Scores& scores) const;
  __device__ __forceinline__ void FinishScores(int block, Scores& scores) const;
  __device__ __forceinline__ void Weigh(int block, Scores& scores) const;
  __device__ __forceinline__ void AddBlock(int block, const uint16_t* values);
  __device__ __forceinline__ void AddValues();
  __device__ __forceinline__ void Write() const;
  __device__ __forceinline__ void MergeIfLast() const;

  const AttentionArgs& args_;
  const AttentionTask& task_;
  const int kv_head_;
  const int first_dim_;
  const int rows_;  // of a tile
  uint32_t* const arrived_;
  const int warp_;
  const int lane_;
  const int row_;
  const int column_;
  const bool upper_;  // some rows from 8 on are there
  const bool adds_;   // this warp has dimensions of the result

  uint2* const weights_;  // [8 rows][block][step][lane]: left operands
  uint4* const queries_;  // [step][lane]: left operands
  float* const maxes_;    // [block][row]: the largest score, as a power of two
  float* const scales_;   // [block][row]: of what came before
  float* const sums_;     // [block][row][4 lanes]: of the weights
  int* const last_;       // whether this is the last block of threads of its tile

  DecodeRing<Shape> ring_;
  int from_ = 0;  // position of the partial's first key
  int keys_ = 0;  // of the partial
  int blocks_ = 0;
  Sums part_;
  Sums total_;
};

template <typename Shape>
__device__ __forceinline__ Decode<Shape>::Decode(const DecodeArgs& args, const AttentionTask& task,
                                                 int kv_head, int out, std::byte* shared)
    : args_(args.run),
      task_(task),
      kv_head_(kv_head),
      first_dim_(out * kOut),
      rows_(args.run.tile_rows),
      arrived_(args.arrived),
      warp_(static_cast<int>(threadIdx.x) / 32),
      lane_(static_cast<int>(threadIdx.x) % 32),
      row_(lane_ / 4),
      column_(lane_ % 4 * 2),
      upper_(RowsOf(args.run, task) > 8),
      adds_(warp_ * kTiles * 8 < kOut && first_dim_ + warp_ * kTiles * 8 < args.run.head_dim),
      weights_(reinterpret_cast<uint2*>(shared + args.slots * Shape::SlotBytes())),
      queries_(reinterpret_cast<uint4*>(reinterpret_cast<std::byte*>(weights_) +
                                        Shape::WeightBytes(rows_))),
      maxes_(reinterpret_cast<float*>(queries_ + kDim / 16 * 32)),
      scales_(maxes_ + Shape::kBlocks * rows_),
      sums_(scales_ + Shape::kBlocks * rows_),
      last_(reinterpret_cast<int*>(sums_ + 4 * Shape::kBlocks * rows_)),
      ring_(args.run, task, kv_head, first_dim_, args.slots, reinterpret_cast<uint16_t*>(shared),
            reinterpret_cast<const uint16_t**>(last_ + 4)) {}

template <typename Shape>
__device__ __forceinline__ void Decode<Shape>::Run() {
  const int from = max(task_.partial, 0) * kAttentionPartial, to = from + task_.keys;
  for (int partial = from; partial < to; partial += kAttentionPartial) {
    const bool first = partial == from;
    if (!first) __syncthreads();  // until all that the partial before left is read
    from_ = partial;
    keys_ = min(kAttentionPartial, to - partial);
    blocks_ = (keys_ + kAttentionBlock - 1) / kAttentionBlock;
    ring_.Begin(from_, keys_, task_.old_keys - from_);
    if (first) LoadQueries();
    __syncthreads();
    Scores scores[Shape::kBlocksOfWarp] = {};
    Score(scores);
    __syncthreads();
#pragma unroll 1
    for (int block = warp_; block < blocks_; block += kWarps) {
      Weigh(block, scores[0]);
      Take(scores[1], scores[0]);
    }
    AddValues();
    AddPart(first, part_, total_);
  }
  Write();
  if (task_.partial >= 0) MergeIfLast();
}

// As the left operands of products; rows that are not there are zeros.
template <typename Shape>
__device__ __forceinline__ void Decode<Shape>::LoadQueries() const {
  const float* q = task_.q + (kv_head_ * args_.group + task_.row) * args_.head_dim + column_;
  const int rows = RowsOf(args_, task_);
  for (int step = warp_; step < kDim / 16; step += kWarps) {
    uint4 query = {0, 0, 0, 0};
    const float *a = q + row_ * args_.head_dim + step * 16, *b = a + 8 * args_.head_dim;
    if (step * 16 < args_.head_dim) {
      if (row_ < rows) query.x = PackBf16(a[0], a[1]), query.z = PackBf16(a[8], a[9]);
      if (row_ + 8 < rows) query.y = PackBf16(b[0], b[1]), query.w = PackBf16(b[8], b[9]);
    }
    queries_[step * 32 + lane_] = query;
  }
}

// ---- scores ----

// Adds queries by kKeys keys.
template <typename Shape>
__device__ __forceinline__ void Decode<Shape>::Multiply(const uint16_t* keys,
                                                        float (*scores)[4]) const {
  const uint16_t* const lane = keys + lane_ % 8 * Shape::kKeyStride + lane_ / 8 * 8;
  const auto multiply = [&](int dim, bool both) {
    const uint4* const query = queries_ + dim / 16 * 32 + lane_;
#pragma unroll
    for (int i = 0; i < kKeys / 8; ++i) {
      uint32_t k[4];  // 8 dimensions each
      LoadMatrices(lane + i * 8 * Shape::kKeyStride + dim, k);
      MultiplyAdd(query[0], k[0], k[1], scores[i]);
      if (both) MultiplyAdd(query[32], k[2], k[3], scores[i]);
    }
  };
  if (args_.head_dim == kDim) {
#pragma unroll
    for (int dim = 0; dim < kDim; dim += 32) multiply(dim, true);
  } else {
#pragma unroll 1
    for (int dim = 0; dim < args_.head_dim; dim += 32) multiply(dim, dim + 16 < args_.head_dim);
  }
}

// Scores of this warp's blocks, of which the loops below hold the last at [1]: so the code is there
// once, and small.
template <typename Shape>
__device__ __forceinline__ void Decode<Shape>::Score(Scores (&scores)[Shape::kBlocksOfWarp]) {
  static_assert(Shape::kBlocksOfWarp == 2);
#pragma unroll 1
  for (int first = 0; first < blocks_; first += kWarps) {
    const int block = first + warp_;
    Take(scores[1], scores[0]);
#pragma unroll
    for (auto& columns : scores[1]) {
#pragma unroll
      for (float& score : columns) score = 0.0f;
    }
#pragma unroll
    for (int load = 0; load < Shape::kLoadsOfBlock; ++load) {
      ring_.Await();
      __syncwarp();
      if (block * kAttentionBlock + load * kKeys < keys_) {
        Multiply(ring_.Keys(), scores[1] + load * kKeys / 8);
      }
      __syncwarp();
      ring_.Refill();
    }
    if (block < blocks_) FinishScores(block, scores[1]);
  }
  if (blocks_ <= kWarps) Take(scores[1], scores[0]);
}

template <typename Shape>
__device__ __forceinline__ void Decode<Shape>::AddAlibi(int block, Scores& scores) const {
  float slopes[2];
  for (int i = 0; i < 2; ++i) {
    const int head = min(task_.row + row_ + 8 * i, args_.group - 1);
    slopes[i] = __ldg(args_.slopes + kv_head_ * args_.group + head);
  }
  cuda::AddAlibi(slopes, from_ + block * kAttentionBlock + column_, args_.head_dim, scores);
}

// Adds what else a block's scores have, hides keys that are not there, whatever their scores are,
// and finds the largest of each row.
template <typename Shape>
__device__ __forceinline__ void Decode<Shape>::FinishScores(int block, Scores& scores) const {
  if (args_.slopes != nullptr) AddAlibi(block, scores);
  const int live = keys_ - block * kAttentionBlock;
  if (live < kAttentionBlock) {
#pragma unroll
    for (int n = 0; n < kAttentionBlock / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (n * 8 + column_ + i % 2 >= live) scores[n][i] = -INFINITY;
      }
    }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (half == 1 && !upper_) break;
    const float max = RowMax(scores, half);
    if (column_ == 0) maxes_[At(block, row_ + 8 * half)] = max;
  }
}

// Turns a block's scores into weights.
template <typename Shape>
__device__ __forceinline__ void Decode<Shape>::Weigh(int block, Scores& scores) const {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (half == 1 && !upper_) break;
    const int row = row_ + 8 * half;
    float before = -INFINITY;
#pragma unroll 4
    for (int b = 0; b < block; ++b) before = NextMax(before, maxes_[At(b, row)]);
    const auto step = SoftmaxStep::From(before, maxes_[At(block, row)]);
    const float sum = step.Weigh(scores, half);
    sums_[At(block, row) * 4 + lane_ % 4] = sum;
    if (column_ == 0) scales_[At(block, row)] = step.scale;
#pragma unroll
    for (int k = 0; k < Shape::kSteps; ++k) {
      const float *a = scores[2 * k] + 2 * half, *b = scores[2 * k + 1] + 2 * half;
      Weights(half, block, k) = {PackBf16(a[0], a[1]), PackBf16(b[0], b[1])};
    }
  }
}

// ---- values ----

// Adds a block's weights by its values.
template <typename Shape>
__device__ __forceinline__ void Decode<Shape>::AddBlock(int block, const uint16_t* values) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (half == 1 && !upper_) break;
    const int at = At(block, row_ + 8 * half);
    const float scale = scales_[at];
    RowState& state = part_.rows[half];
    state.sum = __fmaf_rn(state.sum, scale, sums_[at * 4 + lane_ % 4]);
    state.max = NextMax(state.max, maxes_[at]);
#pragma unroll
    for (auto& columns : part_.values) {
      columns[2 * half] = __fmul_rn(columns[2 * half], scale);
      columns[2 * half + 1] = __fmul_rn(columns[2 * half + 1], scale);
    }
  }
  const int live = keys_ - block * kAttentionBlock;
  const uint16_t* const lane = values + lane_ * Shape::kValueStride + warp_ * kTiles * 8;
  const auto add = [&](int step, bool both) {
    uint4 weights[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint2 lower = Weights(0, block, step + i);
      weights[i] = {lower.x, 0, lower.y, 0};
      if (!upper_) continue;
      const uint2 upper = Weights(1, block, step + i);
      weights[i].y = upper.x;
      weights[i].w = upper.y;
    }
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      uint32_t v[4];  // of 8 keys each
      LoadTransposed(lane + step * 16 * Shape::kValueStride + i * 8, v);
      MultiplyAdd(weights[0], v[0], v[1], part_.values[i]);
      if (both) MultiplyAdd(weights[1], v[2], v[3], part_.values[i]);
    }
  };
  if (live >= kAttentionBlock) {
#pragma unroll
    for (int step = 0; step < Shape::kSteps; step += 2) add(step, true);
  } else {
#pragma unroll 1
    for (int step = 0; step * 16 < live; step += 2) add(step, (step + 1) * 16 < live);
  }
}

// Sums up the partial.
template <typename Shape>
__device__ __forceinline__ void Decode<Shape>::AddValues() {
  constexpr int kStageBlocks = Shape::kStageKeys / kAttentionBlock;
  part_.Clear();
#pragma unroll 1
  for (int stage = 0; stage < ring_.stages(); ++stage) {
    ring_.Await();
    __syncthreads();  // at the first stage for the weights, too
    const int first = stage * kStageBlocks;
#pragma unroll 1
    for (int block = first; adds_ && block < min(first + kStageBlocks, blocks_); ++block) {
      AddBlock(block, ring_.Values() + (block - first) * kAttentionBlock * Shape::kValueStride);
    }
    if (stage + ring_.slots() < ring_.stages()) __syncthreads();
    ring_.Refill();
  }
}

// ---- results ----

template <typename Shape>
__device__ __forceinline__ void Decode<Shape>::Write() const {
  if (!adds_) return;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = row_ + 8 * half;
    if (row >= RowsOf(args_, task_)) break;
    const RowState& state = total_.rows[half];
    float* sums = nullptr;
    if (task_.partial >= 0) sums = SumsOf(args_, task_, kv_head_, task_.partial, row);
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      const int dim = first_dim_ + (warp_ * kTiles + n) * 8 + column_;
      const float* pair = &total_.values[n][2 * half];
      if (dim >= args_.head_dim) break;
      if (sums != nullptr) {
        *reinterpret_cast<float2*>(sums + dim) = {pair[0], pair[1]};
      } else {
        *reinterpret_cast<uint32_t*>(OutOf(args_, task_, kv_head_, row) + dim) =
            PackBf16(Finished(pair[0], state), Finished(pair[1], state));
      }
    }
    if (sums == nullptr || warp_ != 0 || column_ != 0) continue;
    sums[args_.padded_dim] = state.max;  // by the blocks of every first_dim, the same
    sums[args_.padded_dim + 1] = state.sum;
  }
}

// Merges the tile's partials if the sums of all others are there.
template <typename Shape>
__device__ __forceinline__ void Decode<Shape>::MergeIfLast() const {
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    const int tile = (task_.tile * args_.kv_heads + kv_head_) * Shape::kOuts + first_dim_ / kOut;
    const auto last = static_cast<uint32_t>(task_.partials - 1);
    *last_ = atomicInc(arrived_ + tile, last) == last ? 1 : 0;  // which makes it zero again
  }
  __syncthreads();
  if (*last_ == 0) return;
  __threadfence();
  constexpr int kPairs = kOut / 2;
  const int pairs = RowsOf(args_, task_) * kPairs;
  for (int i = static_cast<int>(threadIdx.x); i < pairs; i += Shape::kThreads) {
    const int dim = first_dim_ + i % kPairs * 2;
    if (dim < args_.head_dim) MergePair(args_, task_, kv_head_, i / kPairs, dim);
  }
}

}  // namespace kvcake::cuda
