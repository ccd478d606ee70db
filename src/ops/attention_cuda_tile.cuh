// Attention of one tile of rows over some keys, by one block of threads. Device code of
// attention_cuda.cu.
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

// One thread's share of a tile. Of a 16 x 8 product it holds two columns, column_ and the next, of
// two rows, row_ and row_ + 8: values [0] and [1], then [2] and [3]. How products are computed, of
// how many rows, and how keys and values lie in shared memory for them is Products': MmaProducts'
// or WgmmaProducts'.
template <typename Products>
class Tile {
 public:
  static constexpr int kDim = Products::kDim, kOut = Products::kOut;
  static constexpr int kStages = Products::kStages, kThreads = Products::kThreads;
  static constexpr int kAhead = (kStages - 1) * kAttentionBlock;

  // `shared`: Products::kBytes.
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
        end_(PositionOf(Products::kTileRows - 1) + 1),
        products_(shared) {
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
  // A block's keys and values.
  __device__ __forceinline__ uint16_t* Stage(int block) const {
    return reinterpret_cast<uint16_t*>(shared_) +
           block / kAttentionBlock % kStages * Products::kStageElements;
  }

  __device__ __forceinline__ void Step(int block, int to);
  template <int kLeft>
  __device__ __forceinline__ void Arrive() const;
  __device__ __forceinline__ void LoadQueries();
  __device__ __forceinline__ void ClearStages();
  __device__ __forceinline__ const uint16_t* KeysInPage(int position) const;
  template <int kColumns, typename Place>
  __device__ __forceinline__ void CopyRows(const uint16_t* from, int dims, int rows,
                                           Place place) const;
  __device__ __forceinline__ void LoadBlock(int block) const;
  __device__ __forceinline__ int FirstHidden(int block) const;
  template <typename Visit>
  __device__ __forceinline__ void VisitHidden(int block, Visit visit) const;
  __device__ __forceinline__ bool ValuesMayLeak(int block) const;
  __device__ __forceinline__ void DropInfinite(int block) const;
  __device__ __forceinline__ void AddInfinite(int block, const uint4 (&weights)[4]);
  __device__ __forceinline__ void Weigh(int block, uint4 (&weights)[4]);
  __device__ __forceinline__ void AddAlibi(int block, float (&scores)[8][4]) const;
  __device__ __forceinline__ void Mask(int block, float (&scores)[8][4]) const;
  __device__ __forceinline__ void Softmax(float (&scores)[8][4]);
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
  Products products_;
  Sums part_;
  Sums total_;
};

template <typename Products>
__device__ __forceinline__ void Tile<Products>::Run() {
  const int from = max(task_.partial, 0) * kAttentionPartial, to = from + task_.keys;
  if (args_.head_dim < kDim) ClearStages();
  for (int block = from; block < from + kAhead; block += kAttentionBlock) {
    if (block < to) LoadBlock(block);
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
template <typename Products>
__device__ __forceinline__ void Tile<Products>::Step(int block, int to) {
  // Now nobody needs the block before this one any more: its memory is filled again.
  if constexpr (kStages == 1) {
    __syncthreads();
  } else {
    Arrive<kStages - 2>();
  }
  if (block + kAhead < to) LoadBlock(block + kAhead);
  CommitCopies();
  if constexpr (kStages == 1) Arrive<0>();

  const bool live = row_ / Products::kRowsAtOnce * Products::kRowsAtOnce < RowsOf(args_, task_);
  uint4 weights[4] = {};  // left operands, of 16 keys each
  if (live) Weigh(block, weights);
  // Some row of the tile does not see the last key that is there.
  const bool ragged = min(block + kAttentionBlock, end_) - 1 > first_position_;
  if (ragged && __syncthreads_or(ValuesMayLeak(block))) {
    if (live) AddInfinite(block, weights);
    __syncthreads();
    DropInfinite(block);
    Products::Publish();
    __syncthreads();
  }
  if (live) products_.AddValues(Stage(block), weights, part_.values);
}

// Until the copies of all but the last kLeft commits are there for the products of all threads.
template <typename Products>
template <int kLeft>
__device__ __forceinline__ void Tile<Products>::Arrive() const {
  WaitForCopies<kLeft>();
  Products::Publish();
  __syncthreads();
}

// As the left operands of products: step k has dimensions [16 k, 16 k + 16).
template <typename Products>
__device__ __forceinline__ void Tile<Products>::LoadQueries() {
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
    products_.Query(step) = query;
  }
}

// Nothing is ever copied to the dimensions from head_dim on.
template <typename Products>
__device__ __forceinline__ void Tile<Products>::ClearStages() {
  constexpr int kPieces = kStages * Products::kStageElements / 8;
  for (int i = threadIdx.x; i < kPieces; i += kThreads) shared_[i] = {0, 0, 0, 0};
  __syncthreads();
}

template <typename Products>
__device__ __forceinline__ const uint16_t* Tile<Products>::KeysInPage(int position) const {
  const int chunk = position / args_.chunk_tokens, token = position - chunk * args_.chunk_tokens;
  const PageId page = __ldg(args_.pages + task_.pages + chunk);
  return args_.slab + page * args_.page_elements +
         (static_cast<int64_t>(kv_head_) * args_.chunk_tokens + token) * args_.head_dim;
}

// Enqueues copies of the first `dims` of kColumns columns of 16 rows, 8 columns at a time to where
// place(row, column) says; rows from `rows` on become zeros.
template <typename Products>
template <int kColumns, typename Place>
__device__ __forceinline__ void Tile<Products>::CopyRows(const uint16_t* from, int dims, int rows,
                                                         Place place) const {
  constexpr int kPieces = kColumns / 8, kAll = 16 * kPieces;
#pragma unroll
  for (int first = 0; first < kAll; first += kThreads) {
    const int i = first + static_cast<int>(threadIdx.x), row = i / kPieces, dim = i % kPieces * 8;
    if (i < kAll && dim < dims) {
      CopyAsync(place(row, dim), from + row * args_.head_dim + dim, row < rows);
    }
  }
}

// Enqueues copies of a block's keys and values. Those behind the tile's last position, which hold
// anything, become zeros.
template <typename Products>
__device__ __forceinline__ void Tile<Products>::LoadBlock(int block) const {
  const bool one_page = args_.chunk_tokens % kAttentionBlock == 0;
  uint16_t* const stage = Stage(block);
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
    CopyRows<kDim>(keys, args_.head_dim, rows,
                   [=](int row, int dim) { return Products::Key(stage, first + row, dim); });
    CopyRows<kOut>(keys + args_.plane_elements + first_dim_, args_.head_dim - first_dim_, rows,
                   [=](int row, int dim) { return Products::Value(stage, first + row, dim); });
  }
}

// ---- values that are infinite or no numbers ----
//
// Such a value times a weight of zero is no zero, so where some rows of the tile do not see it,
// those that do get it one by one, and then it is dropped from the product. What a sum becomes by
// it, an infinity or NaN, does not depend on the order: finite values add up to a finite sum.

// The first key of the block that not all of the tile's rows see.
template <typename Products>
__device__ __forceinline__ int Tile<Products>::FirstHidden(int block) const {
  return max(first_position_ + 1 - block, 0);
}

// This thread's share of their values, 8 at a time.
template <typename Products>
template <typename Visit>
__device__ __forceinline__ void Tile<Products>::VisitHidden(int block, Visit visit) const {
  constexpr int kPieces = kOut / 8;
  for (int i = FirstHidden(block) * kPieces + static_cast<int>(threadIdx.x);
       i < kAttentionBlock * kPieces; i += kThreads) {
    uint16_t* const piece = Products::Value(Stage(block), i / kPieces, i % kPieces * 8);
    visit(*reinterpret_cast<uint4*>(piece));
  }
}

template <typename Products>
__device__ __forceinline__ bool Tile<Products>::ValuesMayLeak(int block) const {
  bool found = false;
  VisitHidden(block, [&found](const uint4& value) {
    const uint4 finite = Finite(value);
    found |=
        value.x != finite.x || value.y != finite.y || value.z != finite.z || value.w != finite.w;
  });
  return found;
}

template <typename Products>
__device__ __forceinline__ void Tile<Products>::DropInfinite(int block) const {
  VisitHidden(block, [](uint4& value) { value = Finite(value); });
}

// Adds what DropInfinite drops to the sums of the rows that see it.
template <typename Products>
__device__ __forceinline__ void Tile<Products>::AddInfinite(int block, const uint4 (&weights)[4]) {
#pragma unroll 1
  for (int key = FirstHidden(block); key < kAttentionBlock; ++key) {
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
      const uint16_t* const piece = Products::Value(Stage(block), key, n * 8);
      const uint32_t pair = *reinterpret_cast<const uint32_t*>(piece + column_);
      const uint32_t infinite = pair ^ Finite(pair);
      if (infinite == 0) continue;
      const float value[2] = {__uint_as_float(infinite << 16),
                              __uint_as_float(infinite & 0xffff0000)};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (block + key > position_[i / 2]) continue;
        float& sum = part_.values[n][i];
        sum = __fmaf_rn(weight[i / 2], value[i % 2], sum);
      }
    }
  }
}

// ---- weights ----

// Weighs the keys at [block, block + kAttentionBlock), with zeros for those behind a row; the rows'
// sums are scaled to match.
template <typename Products>
__device__ __forceinline__ void Tile<Products>::Weigh(int block, uint4 (&weights)[4]) {
  float scores[8][4];  // of 8 keys each
  products_.Score(Stage(block), scores);
  if (args_.slopes != nullptr) AddAlibi(block, scores);
  if (block + kAttentionBlock - 1 > first_position_) Mask(block, scores);
  Softmax(scores);
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    const float(&a)[4] = scores[2 * step], (&b)[4] = scores[2 * step + 1];
    weights[step] = {PackBf16(a[0], a[1]), PackBf16(a[2], a[3]), PackBf16(b[0], b[1]),
                     PackBf16(b[2], b[3])};
  }
}

template <typename Products>
__device__ __forceinline__ void Tile<Products>::AddAlibi(int block, float (&scores)[8][4]) const {
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
      scores[n][i] = cuda::AddAlibi(scores[n][i], slopes[i / 2], key, scale);
    }
  }
}

// Whatever the score of a key behind the row's position is, NaN too.
template <typename Products>
__device__ __forceinline__ void Tile<Products>::Mask(int block, float (&scores)[8][4]) const {
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
template <typename Products>
__device__ __forceinline__ void Tile<Products>::Softmax(float (&scores)[8][4]) {
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    RowState& state = part_.rows[row];
    const auto step = SoftmaxStep::From(state.max, RowMax(scores, row));
    state.sum = __fmaf_rn(state.sum, step.scale, step.Weigh(scores, row));
    state.max = step.max;
#pragma unroll
    for (auto& columns : part_.values) {
      columns[2 * row] = __fmul_rn(columns[2 * row], step.scale);
      columns[2 * row + 1] = __fmul_rn(columns[2 * row + 1], step.scale);
    }
  }
}

// ---- results ----

// Adds the partial to the total.
template <typename Products>
__device__ __forceinline__ void Tile<Products>::FinishPartial(bool first) {
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

template <typename Products>
__device__ __forceinline__ void Tile<Products>::Write() const {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = row_ + 8 * i;
    if (row >= RowsOf(args_, task_)) continue;
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
