// Attention of one tile of rows over some keys, by one block of threads. Device code of
// attention_cuda.cu.
//
// Row r of a slice is query head r % group of its token r / group, all of one KV head. A tile is 64
// of them in a row, 16 a warp, which mma.sync.m16n8k16 multiplies by the keys, then the values, of
// blocks of 64 positions. What a row adds up does not depend on the rows beside it: its products
// are its own, weights of keys that it may not see are zeros, and a step that adds zeros and scales
// by one leaves sums as they were, but for the sign of a zero, which Finished() forgets. The
// softmax is written with intrinsics, as the compiler may fuse a * b + c here and not there.
#pragma once

#include <cstdint>

#include "ops/attention_cuda_sums.cuh"

namespace kvcake::cuda {

// Heads of up to kDim dimensions; zeros fill them up. A block of threads computes kOut dimensions
// of the result.
template <int kDim, int kOut>
struct TileShape {
  static constexpr int kStages = kDim <= 128 ? 2 : 1;  // blocks of keys and values in memory
  // Rows are an odd number of 16 bytes apart, so that eight of them fall into different banks.
  static constexpr int kKeyStride = kDim + 8;
  static constexpr int kValueStride = kOut + 8;
  static constexpr int kKeyElements = kAttentionBlock * kKeyStride;
  static constexpr int kStageElements = kKeyElements + kAttentionBlock * kValueStride;
  static constexpr int kStageBytes = kStages * kStageElements * static_cast<int>(sizeof(uint16_t));
  // Large heads leave the queries no registers.
  static constexpr bool kSharedQueries = kDim > 128;
  static constexpr int kQueryBytes =
      kSharedQueries ? kDim / 16 * kTileThreads * static_cast<int>(sizeof(uint4)) : 0;
  static constexpr int kBytes = kStageBytes + kQueryBytes;
  static constexpr int kResident = kDim <= 64 ? 3 : 2;  // blocks of threads that registers allow
};

// One thread's share of a tile. Of a 16 x 8 product it holds two columns, column_ and the next, of
// two rows, row_ and row_ + 8: values [0] and [1], then [2] and [3].
template <int kDim, int kOut>
class Tile {
 public:
  using Shape = TileShape<kDim, kOut>;
  static constexpr int kAhead = (Shape::kStages - 1) * kAttentionBlock;

  // `shared`: Shape::kBytes.
  __device__ __forceinline__ Tile(const AttentionArgs& args, const AttentionTask& task, int kv_head,
                                  int first_dim, uint4* shared)
      : args_(args),
        task_(task),
        kv_head_(kv_head),
        first_dim_(first_dim),
        shared_(shared),
        lane_(threadIdx.x % 32),
        row_(threadIdx.x / 32 * 16 + lane_ / 4),
        column_(lane_ % 4 * 2),
        first_position_(task.start + task.row / args.group),
        end_(PositionOf(kTileRows - 1) + 1) {
    for (int i = 0; i < 2; ++i) position_[i] = PositionOf(row_ + 8 * i);
  }

  // To the end. All threads of the block.
  __device__ __forceinline__ void Run();

 private:
  struct Sums {
    float values[kOut / 8][4];
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

  // Rows past the slice's last are like that one, and go nowhere.
  __device__ __forceinline__ int RowInSlice(int row) const {
    return min(task_.row + row, task_.rows - 1);
  }
  __device__ __forceinline__ int PositionOf(int row) const {
    return task_.start + RowInSlice(row) / args_.group;
  }
  __device__ __forceinline__ uint16_t* Keys(int block) const {
    return reinterpret_cast<uint16_t*>(shared_) +
           block / kAttentionBlock % Shape::kStages * Shape::kStageElements;
  }
  __device__ __forceinline__ uint16_t* Values(int block) const {
    return Keys(block) + Shape::kKeyElements;
  }
  __device__ __forceinline__ uint4& Query(int step) {
    if constexpr (Shape::kSharedQueries) {
      return shared_[Shape::kStageBytes / sizeof(uint4) + step * kTileThreads + threadIdx.x];
    } else {
      return queries_[step];
    }
  }

  __device__ __forceinline__ void Step(int block, int to);
  __device__ __forceinline__ void LoadQueries();
  __device__ __forceinline__ void ClearStages();
  __device__ __forceinline__ const uint16_t* KeysInPage(int position) const;
  template <int kColumns>
  __device__ __forceinline__ void CopyRows(const uint16_t* from, int dims, int rows, uint16_t* to,
                                           int stride) const;
  __device__ __forceinline__ void LoadBlock(int block) const;
  __device__ __forceinline__ bool ValuesMayLeak(int block) const;
  __device__ __forceinline__ void AddBlock(int block, bool leak);
  __device__ __forceinline__ void Score(const uint16_t* keys, float (&scores)[8][4]);
  __device__ __forceinline__ void AddAlibi(int block, float (&scores)[8][4]) const;
  __device__ __forceinline__ void Mask(int block, float (&scores)[8][4]) const;
  __device__ __forceinline__ void Softmax(float (&scores)[8][4]);
  __device__ __forceinline__ void AddValues(const uint16_t* values, const uint4 (&weights)[4]);
  __device__ __forceinline__ void AddVisibleValues(const uint16_t* values,
                                                   const uint4 (&weights)[4], int block);
  __device__ __forceinline__ void FinishPartial(bool first);
  __device__ __forceinline__ void Write() const;

  const AttentionArgs& args_;
  const AttentionTask& task_;
  const int kv_head_;
  const int first_dim_;
  uint4* const shared_;
  const int lane_;
  const int row_;             // in the tile
  const int column_;          // of 8
  const int first_position_;  // of the tile's first row
  const int end_;             // behind the position of the tile's last row
  int position_[2];
  uint4 queries_[Shape::kSharedQueries ? 1 : kDim / 16];
  Sums part_;
  Sums total_;
};

template <int kDim, int kOut>
__device__ __forceinline__ void Tile<kDim, kOut>::Run() {
  const int from = max(task_.partial, 0) * kAttentionPartial, to = from + task_.keys;
  if (args_.head_dim < kDim) ClearStages();
  if (kAhead > 0) {
    LoadBlock(from);
    CommitCopies();
  }
  LoadQueries();
  for (int partial = from; partial < to; partial += kAttentionPartial) {
    part_.Clear();
    const int end = min(to, partial + kAttentionPartial);
    for (int block = partial; block < end; block += kAttentionBlock) Step(block, to);
    FinishPartial(partial == from);
  }
  Write();
}

// Adds a block, and enqueues copies of the one kAhead positions on if that is before `to`.
template <int kDim, int kOut>
__device__ __forceinline__ void Tile<kDim, kOut>::Step(int block, int to) {
  if (block + kAhead < to) LoadBlock(block + kAhead);
  CommitCopies();
  WaitForCopies<Shape::kStages - 1>();
  __syncthreads();
  // Some row of the tile does not see the last key that is there.
  const bool ragged = min(block + kAttentionBlock, end_) - 1 > first_position_;
  const bool leak = ragged && __syncthreads_or(ValuesMayLeak(block));
  const bool live = row_ - lane_ / 4 < RowsOf(task_);  // the warp has rows
  if (live) AddBlock(block, leak);
  __syncthreads();  // before the block's memory is filled again
}

// As the left operands of products: step k has dimensions [16 k, 16 k + 16).
template <int kDim, int kOut>
__device__ __forceinline__ void Tile<kDim, kOut>::LoadQueries() {
  const float* rows[2];
  for (int i = 0; i < 2; ++i) {
    const int row = RowInSlice(row_ + 8 * i), head = kv_head_ * args_.group + row % args_.group;
    rows[i] = task_.q + row / args_.group * args_.q_stride + head * args_.head_dim + column_;
  }
#pragma unroll
  for (int step = 0; step < kDim / 16; ++step) {
    uint4 query = {0, 0, 0, 0};
    if (step * 16 < args_.head_dim) {
      const float *a = rows[0] + step * 16, *b = rows[1] + step * 16;
      query = {PackBf16(a[0], a[1]), PackBf16(b[0], b[1]), PackBf16(a[8], a[9]),
               PackBf16(b[8], b[9])};
    }
    Query(step) = query;
  }
}

// Nothing is ever copied to the dimensions from head_dim on.
template <int kDim, int kOut>
__device__ __forceinline__ void Tile<kDim, kOut>::ClearStages() {
  for (int i = threadIdx.x; i < Shape::kStageBytes / static_cast<int>(sizeof(uint4));
       i += kTileThreads) {
    shared_[i] = {0, 0, 0, 0};
  }
  __syncthreads();
}

template <int kDim, int kOut>
__device__ __forceinline__ const uint16_t* Tile<kDim, kOut>::KeysInPage(int position) const {
  const int chunk = position / args_.chunk_tokens, token = position - chunk * args_.chunk_tokens;
  const PageId page = __ldg(args_.pages + task_.pages + chunk);
  return args_.slab + page * args_.page_elements +
         (static_cast<int64_t>(kv_head_) * args_.chunk_tokens + token) * args_.head_dim;
}

// Enqueues copies of the first `dims` of kColumns columns of 16 rows; rows from `rows` on become
// zeros.
template <int kDim, int kOut>
template <int kColumns>
__device__ __forceinline__ void Tile<kDim, kOut>::CopyRows(const uint16_t* from, int dims, int rows,
                                                           uint16_t* to, int stride) const {
  constexpr int kPieces = kColumns / 8, kAll = 16 * kPieces;
#pragma unroll
  for (int first = 0; first < kAll; first += kTileThreads) {
    const int i = first + static_cast<int>(threadIdx.x), row = i / kPieces, dim = i % kPieces * 8;
    if (i < kAll && dim < dims) {
      CopyAsync(to + row * stride + dim, from + row * args_.head_dim + dim, row < rows);
    }
  }
}

// Enqueues copies of a block's keys and values. Those behind the tile's last position, which hold
// anything, become zeros.
template <int kDim, int kOut>
__device__ __forceinline__ void Tile<kDim, kOut>::LoadBlock(int block) const {
  const bool one_page = args_.chunk_tokens % kAttentionBlock == 0;
  const uint16_t* keys = nullptr;
#pragma unroll
  for (int first = 0; first < kAttentionBlock; first += 16) {
    if (first == 0 || !one_page) {
      // There may be no page behind the last position's.
      keys = KeysInPage(min(block + first, (end_ - 1) / 16 * 16));
    } else {
      keys += 16 * args_.head_dim;
    }
    const int rows = end_ - block - first;
    CopyRows<kDim>(keys, args_.head_dim, rows, Keys(block) + first * Shape::kKeyStride,
                   Shape::kKeyStride);
    CopyRows<kOut>(keys + args_.plane_elements + first_dim_, args_.head_dim - first_dim_, rows,
                   Values(block) + first * Shape::kValueStride, Shape::kValueStride);
  }
}

// Whether this thread finds an infinity or a NaN in values that not all of the rows see: such a
// value times a weight of zero is no zero.
template <int kDim, int kOut>
__device__ __forceinline__ bool Tile<kDim, kOut>::ValuesMayLeak(int block) const {
  constexpr int kPieces = kOut / 8;
  const uint16_t* values = Values(block);
  const int first = max(first_position_ + 1 - block, 0) * kPieces;
  bool found = false;
  for (int i = first + static_cast<int>(threadIdx.x); i < kAttentionBlock * kPieces;
       i += kTileThreads) {
    const uint16_t* at = values + i / kPieces * Shape::kValueStride + i % kPieces * 8;
    const uint4 piece = *reinterpret_cast<const uint4*>(at);
    const uint32_t pairs[4] = {piece.x, piece.y, piece.z, piece.w};
#pragma unroll
    for (const uint32_t pair : pairs) {
      found |= (pair & 0x7f80) == 0x7f80 || (pair & 0x7f800000) == 0x7f800000;
    }
  }
  return found;
}

// Adds the keys at [block, block + kAttentionBlock) to the sums of the rows at or after them.
template <int kDim, int kOut>
__device__ __forceinline__ void Tile<kDim, kOut>::AddBlock(int block, bool leak) {
  float scores[8][4];  // of 8 keys each
  Score(Keys(block), scores);
  if (args_.slopes != nullptr) AddAlibi(block, scores);
  if (block + kAttentionBlock - 1 > first_position_) Mask(block, scores);
  Softmax(scores);
  uint4 weights[4];  // left operands, of 16 keys each
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    const float(&a)[4] = scores[2 * step], (&b)[4] = scores[2 * step + 1];
    weights[step] = {PackBf16(a[0], a[1]), PackBf16(a[2], a[3]), PackBf16(b[0], b[1]),
                     PackBf16(b[2], b[3])};
  }
  if (leak) {
    AddVisibleValues(Values(block), weights, block);
  } else {
    AddValues(Values(block), weights);
  }
}

template <int kDim, int kOut>
__device__ __forceinline__ void Tile<kDim, kOut>::Score(const uint16_t* keys,
                                                        float (&scores)[8][4]) {
  // Keys 0-7, twice, then 8-15, twice; dimensions 0-7, 8-15, 0-7, 8-15.
  const uint16_t* lane =
      keys + (lane_ / 16 * 8 + lane_ % 8) * Shape::kKeyStride + lane_ / 8 % 2 * 8;
#pragma unroll
  for (auto& columns : scores) {
#pragma unroll
    for (float& score : columns) score = 0.0f;
  }
#pragma unroll
  for (int step = 0; step < kDim / 16; ++step) {
    const uint4 query = Query(step);
#pragma unroll
    for (int pair = 0; pair < 4; ++pair) {
      uint32_t k[4];
      LoadMatrices(lane + pair * 16 * Shape::kKeyStride + step * 16, k);
      MultiplyAdd(query, k[0], k[1], scores[2 * pair]);
      MultiplyAdd(query, k[2], k[3], scores[2 * pair + 1]);
    }
  }
}

// Slope and product are rounded to bf16, as Hugging Face transformers has them.
template <int kDim, int kOut>
__device__ __forceinline__ void Tile<kDim, kOut>::AddAlibi(int block, float (&scores)[8][4]) const {
  const float scale = __frsqrt_rn(static_cast<float>(args_.head_dim));
  float slopes[2];
  for (int i = 0; i < 2; ++i) {
    const int head = RowInSlice(row_ + 8 * i) % args_.group;
    slopes[i] = __ldg(args_.slopes + kv_head_ * args_.group + head);
  }
#pragma unroll
  for (int n = 0; n < 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int key = block + n * 8 + column_ + i % 2;
      const float position = RoundToBf16(static_cast<float>(key));
      const float bias = RoundToBf16(__fmul_rn(slopes[i / 2], position));
      scores[n][i] = __fmaf_rn(bias, scale, scores[n][i]);
    }
  }
}

// Whatever the score of a key behind the row's position is, NaN too.
template <int kDim, int kOut>
__device__ __forceinline__ void Tile<kDim, kOut>::Mask(int block, float (&scores)[8][4]) const {
#pragma unroll
  for (int n = 0; n < 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int key = block + n * 8 + column_ + i % 2;
      if (key > position_[i / 2]) scores[n][i] = -INFINITY;
    }
  }
}

// One step of online softmax: turns scores into weights, and rescales what has been summed so far.
template <int kDim, int kOut>
__device__ __forceinline__ void Tile<kDim, kOut>::Softmax(float (&scores)[8][4]) {
  constexpr float kLog2E = 1.44269504f;
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    RowState& state = part_.rows[row];
    float max = -INFINITY;
#pragma unroll
    for (const auto& columns : scores) {
      max = fmaxf(max, fmaxf(columns[2 * row], columns[2 * row + 1]));
    }
    // The row's other columns are in this lane's group of four.
    max = fmaxf(max, __shfl_xor_sync(0xffffffff, max, 1));
    max = fmaxf(max, __shfl_xor_sync(0xffffffff, max, 2));
    max = fmaxf(state.max, __fmul_rn(max, kLog2E));
    // While the row has seen nothing: any number, as weights and sums are zeros.
    const float base = max == -INFINITY ? 0.0f : max;
    const float scale = Exp2(__fsub_rn(state.max, base));
    float sum = 0.0f;  // of this lane's columns
#pragma unroll
    for (auto& columns : scores) {
#pragma unroll
      for (int i = 2 * row; i < 2 * row + 2; ++i) {
        columns[i] = Exp2(__fmaf_rn(columns[i], kLog2E, -base));
        sum = __fadd_rn(sum, columns[i]);
      }
    }
    state.sum = __fmaf_rn(state.sum, scale, sum);
    state.max = max;
#pragma unroll
    for (auto& columns : part_.values) {
      columns[2 * row] = __fmul_rn(columns[2 * row], scale);
      columns[2 * row + 1] = __fmul_rn(columns[2 * row + 1], scale);
    }
  }
}

template <int kDim, int kOut>
__device__ __forceinline__ void Tile<kDim, kOut>::AddValues(const uint16_t* values,
                                                            const uint4 (&weights)[4]) {
  // Keys 0-7, 8-15, 0-7, 8-15; dimensions 0-7, twice, then 8-15, twice.
  const uint16_t* lane = values + lane_ % 16 * Shape::kValueStride + lane_ / 16 * 8;
#pragma unroll
  for (int step = 0; step < 4; ++step) {
#pragma unroll
    for (int pair = 0; pair < kOut / 16; ++pair) {
      uint32_t v[4];
      LoadTransposed(lane + step * 16 * Shape::kValueStride + pair * 16, v);
      MultiplyAdd(weights[step], v[0], v[1], part_.values[2 * pair]);
      MultiplyAdd(weights[step], v[2], v[3], part_.values[2 * pair + 1]);
    }
  }
}

// As AddValues, position by position of the warp's rows: with zeros for values that rows at the
// position don't see, and sums that only they take.
template <int kDim, int kOut>
__device__ __forceinline__ void Tile<kDim, kOut>::AddVisibleValues(const uint16_t* values,
                                                                   const uint4 (&weights)[4],
                                                                   int block) {
  const uint16_t* lane = values + lane_ % 16 * Shape::kValueStride + lane_ / 16 * 8;
  const int first = __shfl_sync(0xffffffff, position_[0], 0);
  const int last = __shfl_sync(0xffffffff, position_[1], 31);
#pragma unroll
  for (int pair = 0; pair < kOut / 16; ++pair) {
    float(&low_sums)[4] = part_.values[2 * pair];
    float(&high_sums)[4] = part_.values[2 * pair + 1];
#pragma unroll 1
    for (int position = first; position <= last; ++position) {
      const int seen = position + 1 - block - column_;
      float low[4] = {low_sums[0], low_sums[1], low_sums[2], low_sums[3]};
      float high[4] = {high_sums[0], high_sums[1], high_sums[2], high_sums[3]};
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        uint32_t v[4];
        LoadTransposed(lane + step * 16 * Shape::kValueStride + pair * 16, v);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int key = step * 16 + i % 2 * 8;
          if (key >= seen) v[i] &= 0xffff0000;
          if (key + 1 >= seen) v[i] &= 0x0000ffff;
        }
        MultiplyAdd(weights[step], v[0], v[1], low);
        MultiplyAdd(weights[step], v[2], v[3], high);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (position_[i / 2] != position) continue;
        low_sums[i] = low[i];
        high_sums[i] = high[i];
      }
    }
  }
}

// Adds the partial to the total.
template <int kDim, int kOut>
__device__ __forceinline__ void Tile<kDim, kOut>::FinishPartial(bool first) {
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    RowState& state = part_.rows[row];
    state.sum = __fadd_rn(state.sum, __shfl_xor_sync(0xffffffff, state.sum, 1));
    state.sum = __fadd_rn(state.sum, __shfl_xor_sync(0xffffffff, state.sum, 2));
    if (first) continue;
    const MergeScale scale = MergeState(state, &total_.rows[row]);
#pragma unroll
    for (int n = 0; n < kOut / 8; ++n) {
#pragma unroll
      for (int i = 2 * row; i < 2 * row + 2; ++i) {
        total_.values[n][i] = MergeValue(part_.values[n][i], total_.values[n][i], scale);
      }
    }
  }
  if (first) total_ = part_;
}

template <int kDim, int kOut>
__device__ __forceinline__ void Tile<kDim, kOut>::Write() const {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = row_ + 8 * i;
    if (row >= RowsOf(task_)) continue;
    const RowState& state = total_.rows[i];
    if (task_.partial < 0) {
      uint16_t* out = OutOf(args_, task_, kv_head_, row);
#pragma unroll
      for (int n = 0; n < kOut / 8; ++n) {
        const int dim = first_dim_ + n * 8 + column_;
        const float* pair = &total_.values[n][2 * i];
        if (dim >= args_.head_dim) continue;
        *reinterpret_cast<uint32_t*>(out + dim) =
            PackBf16(Finished(pair[0], state), Finished(pair[1], state));
      }
      continue;
    }
    float* sums = SumsOf(args_, task_, kv_head_, task_.partial, row);
#pragma unroll
    for (int n = 0; n < kOut / 8; ++n) {
      float* to = sums + first_dim_ + n * 8 + column_;
      *reinterpret_cast<float2*>(to) = {total_.values[n][2 * i], total_.values[n][2 * i + 1]};
    }
    if (column_ != 0) continue;
    sums[kDim] = state.max;  // by the threads of every first_dim, the same
    sums[kDim + 1] = state.sum;
  }
}

}  // namespace kvcake::cuda
