// What one thread has of a tile of rows, whatever multiplies them: queries, weights, sums, results.
// Device code of attention_cuda.cu.
//
// Row r of a slice is query head r % group of its token r / group, all of one KV head. A tile is
// some of them in a row, 16 a warp, which are multiplied by the keys, then the values, of blocks of
// 64 positions. What a row adds up does not depend on the rows beside it: its products are its own,
// weights of keys that it may not see are zeros, and a step that adds zeros and scales by one
// leaves sums as they were, but for the sign of a zero, which Finished() forgets.
#pragma once

#include <cstdint>

#include "ops/attention_cuda_softmax.cuh"
#include "ops/attention_cuda_sums.cuh"

namespace kvcake::cuda {

// A pair of bf16, with zeros for infinities and NaNs.
__device__ __forceinline__ uint32_t Finite(uint32_t pair) {
  if ((pair & 0x7f80) == 0x7f80) pair &= 0xffff0000;
  if ((pair & 0x7f800000) == 0x7f800000) pair &= 0x0000ffff;
  return pair;
}

__device__ __forceinline__ uint4 Finite(const uint4& pairs) {
  return {Finite(pairs.x), Finite(pairs.y), Finite(pairs.z), Finite(pairs.w)};
}

__device__ __forceinline__ bool IsFinite(const uint4& pairs) {
  const uint4 finite = Finite(pairs);
  return pairs.x == finite.x && pairs.y == finite.y && pairs.z == finite.z && pairs.w == finite.w;
}

// The two columns of a 16 x 8 product that this thread has begin at column_, its rows are row_ and
// row_ + 8.
template <int kDim, int kOut>
class TileRows {
 public:
  using Scores = float[8][4];         // of 8 keys each; then weights
  using Values = float[kOut / 8][4];  // weighted and added up, of 8 dimensions each
  using Sums = RowSums<kOut / 8>;
  struct RowScales {
    float of[2];

    __device__ __forceinline__ bool AreNotOne() const { return of[0] != 1.0f || of[1] != 1.0f; }
  };

  // Computes dimensions [first_dim, first_dim + kOut) of the results; 16 rows a warp.
  __device__ __forceinline__ TileRows(const AttentionArgs& args, const AttentionTask& task,
                                      int kv_head, int first_dim)
      : args_(args),
        task_(task),
        kv_head_(kv_head),
        first_dim_(first_dim),
        lane_(threadIdx.x % 32),
        row_(threadIdx.x / 32 * 16 + lane_ / 4),
        column_(lane_ % 4 * 2) {
    for (int i = 0; i < 2; ++i) position_[i] = PositionOf(row_ + 8 * i);
  }

  __device__ __forceinline__ int row() const { return row_; }
  // Where a row of the tile stands. Rows past the slice's last are like that one, and go nowhere.
  __device__ __forceinline__ int PositionOf(int row) const {
    return task_.start + RowInSlice(row) / args_.group;
  }

  // The left operands of products with keys, of 16 dimensions each.
  __device__ __forceinline__ void LoadQueries(uint4 (&queries)[kDim / 16]) const;

  // One step of online softmax: turns the scores of the keys at [block, block + kAttentionBlock)
  // into weights, which are zeros for keys behind a row. What has been summed before it is to be
  // scaled by what it returns. `first_position`: of the first of the rows beside this one.
  __device__ __forceinline__ RowScales Weigh(int block, int first_position, Scores& scores,
                                             RowState (&rows)[2]) const;
  // The same of two blocks, the second of which begins at block + kAttentionBlock. What has been
  // summed is to be scaled by *between before the second's values are added. kPlain: the tile's
  // rows see all of both, and there is no ALiBi.
  template <bool kPlain>
  __device__ __forceinline__ RowScales WeighPair(int block, int first_position, Scores& lower,
                                                 Scores& upper, RowState (&rows)[2],
                                                 RowScales* between) const;
  static __device__ __forceinline__ void Scale(const RowScales& scales, Values& values);
  // As left operands, of 16 keys each.
  static __device__ __forceinline__ void Pack(const Scores& scores, uint4 (&weights)[4]);

  // Adds the weighted infinities and NaNs of the block's keys from first_hidden on, for the rows
  // that see them. value(key, dim): where that of the dimensions from dim on lies. Such a value
  // times a weight of zero is no zero, so where some rows of the tile do not see it, those that do
  // get it here, one by one, and the product goes without. What a sum becomes by it, an infinity
  // or NaN, does not depend on the order: finite values add up to a finite sum.
  template <typename Value>
  __device__ __forceinline__ void AddInfinite(int block, int first_hidden,
                                              const uint4 (&weights)[4], Values& values,
                                              const Value& value) const;

  // To the tile's place in `out`, or to that of its partial in the sums.
  __device__ __forceinline__ void Write(const Values& values, const RowState (&rows)[2]) const;

 private:
  __device__ __forceinline__ int RowInSlice(int row) const {
    return min(task_.row + row, task_.rows - 1);
  }
  __device__ __forceinline__ void AddAlibi(int block, Scores& scores) const;
  __device__ __forceinline__ void Mask(int block, Scores& scores) const;

  const AttentionArgs& args_;
  const AttentionTask& task_;
  const int kv_head_;
  const int first_dim_;
  const int lane_;
  const int row_;     // in the tile
  const int column_;  // of 8
  int position_[2];
};

template <int kDim, int kOut>
__device__ __forceinline__ void TileRows<kDim, kOut>::LoadQueries(
    uint4 (&queries)[kDim / 16]) const {
  const float* rows[2];
  for (int i = 0; i < 2; ++i) {
    const int row = RowInSlice(row_ + 8 * i), head = kv_head_ * args_.group + row % args_.group;
    rows[i] = task_.q + row / args_.group * args_.q_stride + head * args_.head_dim + column_;
  }
  // All reads are under way before the first is waited for.
  float2 pairs[kDim / 16][4];
#pragma unroll
  for (int step = 0; step < kDim / 16; ++step) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float* const from = rows[i % 2] + step * 16 + i / 2 * 8;
      pairs[step][i] =
          step * 16 < args_.head_dim ? *reinterpret_cast<const float2*>(from) : float2{0.0f, 0.0f};
    }
  }
#pragma unroll
  for (int step = 0; step < kDim / 16; ++step) {
    const float2(&of)[4] = pairs[step];
    queries[step] = {PackBf16(of[0].x, of[0].y), PackBf16(of[1].x, of[1].y),
                     PackBf16(of[2].x, of[2].y), PackBf16(of[3].x, of[3].y)};
  }
}

// ---- weights ----

template <int kDim, int kOut>
__device__ __forceinline__ typename TileRows<kDim, kOut>::RowScales TileRows<kDim, kOut>::Weigh(
    int block, int first_position, Scores& scores, RowState (&rows)[2]) const {
  if (args_.slopes != nullptr) AddAlibi(block, scores);
  if (block + kAttentionBlock - 1 > first_position) Mask(block, scores);
  RowScales scales;
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    RowState& state = rows[row];
    const SoftmaxStep step = SoftmaxStep::From(state.max, RowMax(scores, row));
    scales.of[row] = step.scale;
    state.sum = __fmaf_rn(state.sum, step.scale, step.Weigh(scores, row));
    state.max = step.max;
  }
  return scales;
}

template <int kDim, int kOut>
template <bool kPlain>
__device__ __forceinline__ typename TileRows<kDim, kOut>::RowScales TileRows<kDim, kOut>::WeighPair(
    int block, int first_position, Scores& lower, Scores& upper, RowState (&rows)[2],
    RowScales* between) const {
  if (!kPlain && args_.slopes != nullptr) {
    AddAlibi(block, lower);
    AddAlibi(block + kAttentionBlock, upper);
  }
  if (!kPlain && block + 2 * kAttentionBlock - 1 > first_position) {
    Mask(block, lower);
    Mask(block + kAttentionBlock, upper);
  }
  float maxes[2][2];
  RowMaxes(lower, upper, maxes);
  RowScales scales;
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    RowState& state = rows[row];
    const SoftmaxStep first = SoftmaxStep::From(state.max, maxes[row][0]);
    const SoftmaxStep second = SoftmaxStep::From(first.max, maxes[row][1]);
    scales.of[row] = first.scale;
    between->of[row] = second.scale;
    state.sum = __fmaf_rn(state.sum, first.scale, first.Weigh(lower, row));
    state.sum = __fmaf_rn(state.sum, second.scale, second.Weigh(upper, row));
    state.max = second.max;
  }
  return scales;
}

template <int kDim, int kOut>
__device__ __forceinline__ void TileRows<kDim, kOut>::AddAlibi(int block, Scores& scores) const {
  float slopes[2];
  for (int i = 0; i < 2; ++i) {
    const int head = RowInSlice(row_ + 8 * i) % args_.group;
    slopes[i] = __ldg(args_.slopes + kv_head_ * args_.group + head);
  }
  cuda::AddAlibi(slopes, block + column_, args_.head_dim, scores);
}

// Whatever the score of a key behind the row's position is, NaN too.
template <int kDim, int kOut>
__device__ __forceinline__ void TileRows<kDim, kOut>::Mask(int block, Scores& scores) const {
#pragma unroll
  for (int n = 0; n < 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int key = block + n * 8 + column_ + i % 2;
      if (key > position_[i / 2]) scores[n][i] = -INFINITY;
    }
  }
}

template <int kDim, int kOut>
__device__ __forceinline__ void TileRows<kDim, kOut>::Scale(const RowScales& scales,
                                                            Values& values) {
  if (!__any_sync(0xffffffff, scales.AreNotOne())) return;
#pragma unroll
  for (int n = 0; n < kOut / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) values[n][i] = __fmul_rn(values[n][i], scales.of[i / 2]);
  }
}

template <int kDim, int kOut>
__device__ __forceinline__ void TileRows<kDim, kOut>::Pack(const Scores& scores,
                                                           uint4 (&weights)[4]) {
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    const float(&a)[4] = scores[2 * step], (&b)[4] = scores[2 * step + 1];
    weights[step] = {PackBf16(a[0], a[1]), PackBf16(a[2], a[3]), PackBf16(b[0], b[1]),
                     PackBf16(b[2], b[3])};
  }
}

template <int kDim, int kOut>
template <typename Value>
__device__ __forceinline__ void TileRows<kDim, kOut>::AddInfinite(int block, int first_hidden,
                                                                  const uint4 (&weights)[4],
                                                                  Values& values,
                                                                  const Value& value) const {
#pragma unroll 1
  for (int key = first_hidden; key < kAttentionBlock; ++key) {
    float weight[2];
    for (int row = 0; row < 2; ++row) {
      uint32_t pair = 0;  // of the key and the one beside it, in the lane that has them
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        const uint4& of = weights[step];
        if (key / 8 == 2 * step) pair = row == 0 ? of.x : of.y;
        if (key / 8 == 2 * step + 1) pair = row == 0 ? of.z : of.w;
      }
      pair = __shfl_sync(0xffffffff, pair, lane_ / 4 * 4 + key % 8 / 2);
      weight[row] = __uint_as_float(key % 2 == 0 ? pair << 16 : pair & 0xffff0000);
    }
#pragma unroll
    for (int n = 0; n < kOut / 8; ++n) {
      const uint32_t pair = *reinterpret_cast<const uint32_t*>(value(key, n * 8) + column_);
      const uint32_t infinite = pair ^ Finite(pair);
      if (infinite == 0) continue;
      const float both[2] = {__uint_as_float(infinite << 16),
                             __uint_as_float(infinite & 0xffff0000)};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (block + key > position_[i / 2]) continue;
        values[n][i] = __fmaf_rn(weight[i / 2], both[i % 2], values[n][i]);
      }
    }
  }
}

// ---- results ----

template <int kDim, int kOut>
__device__ __forceinline__ void TileRows<kDim, kOut>::Write(const Values& values,
                                                            const RowState (&rows)[2]) const {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = row_ + 8 * i;
    if (row >= RowsOf(args_, task_)) continue;
    if (task_.partial < 0) {
      uint16_t* out = OutOf(args_, task_, kv_head_, row);
#pragma unroll
      for (int n = 0; n < kOut / 8; ++n) {
        const int dim = first_dim_ + n * 8 + column_;
        const float* pair = &values[n][2 * i];
        if (dim >= args_.head_dim) continue;
        *reinterpret_cast<uint32_t*>(out + dim) =
            PackBf16(Finished(pair[0], rows[i]), Finished(pair[1], rows[i]));
      }
      continue;
    }
    float* sums = SumsOf(args_, task_, kv_head_, task_.partial, row);
#pragma unroll
    for (int n = 0; n < kOut / 8; ++n) {
      float* to = sums + first_dim_ + n * 8 + column_;
      *reinterpret_cast<float2*>(to) = {values[n][2 * i], values[n][2 * i + 1]};
    }
    if (column_ != 0) continue;
    sums[kDim] = rows[i].max;  // by the threads of every first_dim, the same
    sums[kDim + 1] = rows[i].sum;
  }
}

}  // namespace kvcake::cuda
