// Attention of a tile by mma.sync.m16n8k16: a warp's 16 rows at once, on every device. Device code
// of attention_cuda.cu.
#pragma once

#include <cstdint>

#include "ops/attention_cuda_rows.cuh"

namespace kvcake::cuda {

// Multiplies tiles of heads of up to kDimensions dimensions; zeros fill them up. A block of threads
// computes kOutDimensions of the result.
template <int kDimensions, int kOutDimensions>
class MmaProducts {
 public:
  static constexpr int kDim = kDimensions, kOut = kOutDimensions;
  static constexpr int kTileRows = 64;
  static constexpr int kThreads = 2 * kTileRows;
  static constexpr int kResident = kDim <= 64 ? 3 : 2;  // blocks of threads that registers allow
  static constexpr int kStages = kDim <= 128 ? 2 : 1;   // blocks of keys and values in memory
  // Rows are an odd number of 16 bytes apart, so that eight of them fall into different banks.
  static constexpr int kKeyStride = kDim + 8;
  static constexpr int kValueStride = kOut + 8;
  static constexpr int kKeyElements = kAttentionBlock * kKeyStride;
  static constexpr int kStageElements = kKeyElements + kAttentionBlock * kValueStride;
  // Large heads leave the queries no registers.
  static constexpr bool kSharedQueries = kDim > 128;
  static constexpr int kStagePieces = kStages * kStageElements / 8;  // of 16 bytes
  static constexpr int kQueryPieces = kSharedQueries ? kDim / 16 * kThreads : 0;
  static constexpr int kBytes = (kStagePieces + kQueryPieces) * static_cast<int>(sizeof(uint4));

  __device__ __forceinline__ explicit MmaProducts(uint4* shared)
      : shared_(shared), lane_(threadIdx.x % 32) {}

  // Where 8 dimensions of a stage's key or value lie.
  static __device__ __forceinline__ uint16_t* Key(uint16_t* stage, int key, int dim) {
    return stage + key * kKeyStride + dim;
  }
  static __device__ __forceinline__ uint16_t* Value(uint16_t* stage, int key, int dim) {
    return stage + kKeyElements + key * kValueStride + dim;
  }
  __device__ __forceinline__ uint4& Query(int step) {
    if constexpr (kSharedQueries) {
      return shared_[kStagePieces + step * kThreads + threadIdx.x];
    } else {
      return queries_[step];
    }
  }

  // Queries by keys. All lanes of the warp, as AddValues.
  __device__ __forceinline__ void Score(const uint16_t* stage, float (&scores)[8][4]) {
    // Keys 0-7, twice, then 8-15, twice; dimensions 0-7, 8-15, 0-7, 8-15.
    const uint16_t* lane = stage + (lane_ / 16 * 8 + lane_ % 8) * kKeyStride + lane_ / 8 % 2 * 8;
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
        LoadMatrices(lane + pair * 16 * kKeyStride + step * 16, k);
        MultiplyAdd(query, k[0], k[1], scores[2 * pair]);
        MultiplyAdd(query, k[2], k[3], scores[2 * pair + 1]);
      }
    }
  }

  // Adds weights by values.
  __device__ __forceinline__ void AddValues(const uint16_t* stage, const uint4 (&weights)[4],
                                            float (&sums)[kOut / 8][4]) const {
    // Keys 0-7, 8-15, 0-7, 8-15; dimensions 0-7, twice, then 8-15, twice.
    const uint16_t* lane = stage + kKeyElements + lane_ % 16 * kValueStride + lane_ / 16 * 8;
#pragma unroll
    for (int step = 0; step < 4; ++step) {
#pragma unroll
      for (int pair = 0; pair < kOut / 16; ++pair) {
        uint32_t v[4];
        LoadTransposed(lane + step * 16 * kValueStride + pair * 16, v);
        MultiplyAdd(weights[step], v[0], v[1], sums[2 * pair]);
        MultiplyAdd(weights[step], v[2], v[3], sums[2 * pair + 1]);
      }
    }
  }

 private:
  uint4* const shared_;
  const int lane_;
  uint4 queries_[kSharedQueries ? 1 : kDim / 16];
};

// A block of threads' tile, of whose results it computes kOut dimensions from first_dim on.
template <int kDimensions, int kOutDimensions>
class MmaTile {
 public:
  using Products = MmaProducts<kDimensions, kOutDimensions>;
  static constexpr bool kCompiled = true;
  static constexpr int kDim = Products::kDim, kOut = Products::kOut;
  static constexpr int kTileRows = Products::kTileRows;
  static constexpr int kThreads = Products::kThreads, kResident = Products::kResident;
  static constexpr int kBytes = Products::kBytes;

  // `shared`: kBytes.
  __device__ __forceinline__ MmaTile(const AttentionArgs& args, const TensorMap&,
                                     const AttentionTask& task, int kv_head, int first_dim,
                                     std::byte* shared)
      : args_(args),
        task_(task),
        kv_head_(kv_head),
        first_dim_(first_dim),
        shared_(reinterpret_cast<uint4*>(shared)),
        rows_(args, task, kv_head, first_dim),
        first_position_(rows_.PositionOf(0)),
        end_(rows_.PositionOf(kTileRows - 1) + 1),
        products_(shared_) {}

  // To the end. All threads of the block.
  __device__ __forceinline__ void Run();

 private:
  using Rows = TileRows<kDim, kOut>;
  using Sums = typename Rows::Sums;
  static constexpr int kStages = Products::kStages;
  static constexpr int kAhead = (kStages - 1) * kAttentionBlock;

  // A block's keys and values.
  __device__ __forceinline__ uint16_t* Stage(int block) const {
    return reinterpret_cast<uint16_t*>(shared_) +
           block / kAttentionBlock % kStages * Products::kStageElements;
  }

  __device__ __forceinline__ void Step(int block, int to);
  template <int kLeft>
  __device__ __forceinline__ void Arrive() const;
  __device__ __forceinline__ void ClearStages();
  __device__ __forceinline__ const uint16_t* KeysInPage(int position) const;
  template <int kColumns, typename Place>
  __device__ __forceinline__ void CopyRows(const uint16_t* from, int dims, int rows,
                                           Place place) const;
  __device__ __forceinline__ void LoadBlock(int block) const;
  // The first key of the block that not all of the tile's rows see.
  __device__ __forceinline__ int FirstHidden(int block) const {
    return max(first_position_ + 1 - block, 0);
  }
  template <typename Visit>
  __device__ __forceinline__ void VisitHidden(int block, Visit visit) const;
  __device__ __forceinline__ bool ValuesMayLeak(int block) const;

  const AttentionArgs& args_;
  const AttentionTask& task_;
  const int kv_head_;
  const int first_dim_;
  uint4* const shared_;
  const Rows rows_;
  const int first_position_;  // of the tile's first row
  const int end_;             // behind the position of the tile's last row
  Products products_;
  Sums part_;
  Sums total_;
};

template <int kDimensions, int kOutDimensions>
__device__ __forceinline__ void MmaTile<kDimensions, kOutDimensions>::Run() {
  const int from = max(task_.partial, 0) * kAttentionPartial, to = from + task_.keys;
  if (args_.head_dim < kDim) ClearStages();
  for (int block = from; block < from + kAhead; block += kAttentionBlock) {
    if (block < to) LoadBlock(block);
    CommitCopies();
  }
  {
    uint4 queries[kDim / 16];
    rows_.LoadQueries(queries);
#pragma unroll
    for (int step = 0; step < kDim / 16; ++step) products_.Query(step) = queries[step];
  }
  for (int partial = from; partial < to; partial += kAttentionPartial) {
    part_.Clear();
    const int end = min(to, partial + kAttentionPartial);
    for (int block = partial; block < end; block += kAttentionBlock) Step(block, to);
    AddPart(partial == from, part_, total_);
  }
  rows_.Write(total_.values, total_.rows);
}

// Adds a block, and enqueues copies of the one kAhead positions on if that is before `to`.
template <int kDimensions, int kOutDimensions>
__device__ __forceinline__ void MmaTile<kDimensions, kOutDimensions>::Step(int block, int to) {
  // Now nobody needs the block before this one any more: its memory is filled again.
  if constexpr (kStages == 1) {
    __syncthreads();
  } else {
    Arrive<kStages - 2>();
  }
  if (block + kAhead < to) LoadBlock(block + kAhead);
  CommitCopies();
  if constexpr (kStages == 1) Arrive<0>();

  const bool live = rows_.row() / 16 * 16 < RowsOf(args_, task_);
  uint4 weights[4] = {};  // left operands, of 16 keys each
  if (live) {
    typename Rows::Scores scores;
    products_.Score(Stage(block), scores);
    Rows::Scale(rows_.Weigh(block, first_position_, scores, part_.rows), part_.values);
    Rows::Pack(scores, weights);
  }
  // Some row of the tile does not see the last key that is there.
  const bool ragged = min(block + kAttentionBlock, end_) - 1 > first_position_;
  if (ragged && __syncthreads_or(ValuesMayLeak(block))) {
    uint16_t* const stage = Stage(block);
    const auto value = [stage](int key, int dim) { return Products::Value(stage, key, dim); };
    if (live) rows_.AddInfinite(block, FirstHidden(block), weights, part_.values, value);
    __syncthreads();
    VisitHidden(block, [](uint4& values) { values = Finite(values); });
    __syncthreads();
  }
  if (live) products_.AddValues(Stage(block), weights, part_.values);
}

// Until the copies of all but the last kLeft commits are there for all threads.
template <int kDimensions, int kOutDimensions>
template <int kLeft>
__device__ __forceinline__ void MmaTile<kDimensions, kOutDimensions>::Arrive() const {
  WaitForCopies<kLeft>();
  __syncthreads();
}

// Nothing is ever copied to the dimensions from head_dim on.
template <int kDimensions, int kOutDimensions>
__device__ __forceinline__ void MmaTile<kDimensions, kOutDimensions>::ClearStages() {
  constexpr int kPieces = kStages * Products::kStageElements / 8;
  for (int i = threadIdx.x; i < kPieces; i += kThreads) shared_[i] = {0, 0, 0, 0};
  __syncthreads();
}

template <int kDimensions, int kOutDimensions>
__device__ __forceinline__ const uint16_t* MmaTile<kDimensions, kOutDimensions>::KeysInPage(
    int position) const {
  const int chunk = position / args_.chunk_tokens, token = position - chunk * args_.chunk_tokens;
  const PageId page = __ldg(args_.pages + task_.pages + chunk);
  return args_.slab + page * args_.page_elements +
         (static_cast<int64_t>(kv_head_) * args_.chunk_tokens + token) * args_.head_dim;
}

// Enqueues copies of the first `dims` of kColumns columns of 16 rows, 8 columns at a time to where
// place(row, column) says; rows from `rows` on become zeros.
template <int kDimensions, int kOutDimensions>
template <int kColumns, typename Place>
__device__ __forceinline__ void MmaTile<kDimensions, kOutDimensions>::CopyRows(const uint16_t* from,
                                                                               int dims, int rows,
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
template <int kDimensions, int kOutDimensions>
__device__ __forceinline__ void MmaTile<kDimensions, kOutDimensions>::LoadBlock(int block) const {
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

// This thread's share of the values that not all rows see, 8 at a time.
template <int kDimensions, int kOutDimensions>
template <typename Visit>
__device__ __forceinline__ void MmaTile<kDimensions, kOutDimensions>::VisitHidden(
    int block, Visit visit) const {
  constexpr int kPieces = kOut / 8;
  for (int i = FirstHidden(block) * kPieces + static_cast<int>(threadIdx.x);
       i < kAttentionBlock * kPieces; i += kThreads) {
    uint16_t* const piece = Products::Value(Stage(block), i / kPieces, i % kPieces * 8);
    visit(*reinterpret_cast<uint4*>(piece));
  }
}

template <int kDimensions, int kOutDimensions>
__device__ __forceinline__ bool MmaTile<kDimensions, kOutDimensions>::ValuesMayLeak(
    int block) const {
  bool found = false;
  VisitHidden(block, [&found](const uint4& values) { found |= !IsFinite(values); });
  return found;
}

}  // namespace kvcake::cuda
