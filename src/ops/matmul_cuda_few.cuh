// The kernel of matmul_cuda_few.h: a product, or a few that follow each other. A block of threads
// on each multiprocessor runs from its beginning to its end, and takes tiles of 16 rows of the
// weights, which warps hand to each other:
// 1. loaders copy pieces of the weights' rows into a ring in shared memory, by TMA. They begin
//    before the kernels enqueued before have ended, as no kernel writes weights, go on to the next
//    product's weights while the others are at this one's, and wait for nothing but room.
// 2. multipliers share the columns of each stage of the ring. The rows that enter lie in shared
//    memory from a product's beginning to its end.
// 3. finishers add up the multipliers' sums, in their order, while those are at the next tile, and
//    store the result. They wait for all blocks' results before the next product, whose rows these
//    are.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/cuda_instructions.cuh"
#include "ops/cuda_ring.cuh"
#include "ops/cuda_warp.cuh"
#include "ops/matmul_cuda_few.h"
#include "ops/matmul_cuda_few_result.cuh"

namespace kvcake::cuda {

constexpr int kFewRowsMax = 4;
constexpr int kTokens = 8;  // rows that enter: what mma.sync has

constexpr int kLoaders = 4, kMultipliers = 8, kFinishers = 1;  // warps, in this order
constexpr int kFewRowsThreads = (kLoaders + kMultipliers + kFinishers) * kWarp;
constexpr int kMultiplierThreads = kMultipliers * kWarp;
constexpr int kLoaderRows = kTileRows / kLoaders;

// A stage of the ring: a tile's rows, some columns of each. Rows are an odd number of 16 bytes
// apart, so that eight of them fall into different banks.
constexpr int kStageK = 512;
constexpr int kPieceStride = kStageK + 8;
constexpr int kStageElements = kTileRows * kPieceStride;
constexpr int kStageBytes = kStageElements * 2;
constexpr int kSlotsMax = 16;                   // stages of a ring
constexpr int kPartK = kStageK / kMultipliers;  // columns of a stage, of a multiplier
static_assert(kPartK % 32 == 0);
constexpr int kRowChunks = 4;    // in which the rows that enter come: products begin with the first
constexpr int kNormVectors = 8;  // of 4 elements of a row, of a multiplier's thread

// Products whose rows are results of those before them.
struct FewRowsProducts {
  static constexpr int kMax = 4;  // of a layer and the next one's: between attention and attention

  FewRowsProduct of[kMax];
  int count = 0;
  int slots = 0;                // of the ring
  int row_elements = 0;         // room for the rows that enter, of any of them
  unsigned* arrived = nullptr;  // blocks whose results are there: 0 before and after the kernel
};

// Shared memory, behind the ring and the rows that enter.
struct FewRowsShared {
  float4 sums[2][kMultipliers][kWarp];  // of a tile, twice
  float squares[kFewRowsMax][kMultipliers];
  Barrier full[kSlotsMax], free[kSlotsMax];
  Barrier summed[2], taken[2];  // the sums
  Barrier loaded[kRowChunks];   // of the rows that enter
  Barrier normalized;           // or of all of them
  Barrier ready;                // results of the product before
};

inline int FewRowsSharedBytes(const FewRowsProducts& products) {
  return products.slots * kStageBytes + products.row_elements * 2 +
         static_cast<int>(sizeof(FewRowsShared));
}

// One thread's part of a block. kJoined: there are several products, which costs registers.
template <bool kJoined>
class FewRowsBlock {
 public:
  __device__ __forceinline__ FewRowsBlock(const FewRowsProducts& products, std::byte* shared)
      : products_(products),
        ring_(reinterpret_cast<uint16_t*>(shared)),
        a_(ring_ + products.slots * kStageElements),
        shared_(*reinterpret_cast<FewRowsShared*>(a_ + products.row_elements)),
        warp_(static_cast<int>(threadIdx.x) / kWarp - kLoaders),
        lane_(static_cast<int>(threadIdx.x) % kWarp),
        first_tile_(static_cast<int>(blockIdx.x)),
        blocks_(static_cast<int>(gridDim.x)) {}

  __device__ __forceinline__ void Run() {
    LetNextKernelStart();
    InitBarriers();
    if (warp_ < 0) {
      RingPlace place;
      for (int i = 0; i < Count(); ++i) {
        Load(Of(i), (warp_ + kLoaders) * kLoaderRows + lane_, &place);
      }
      WaitForEarlierKernels();
    } else if (warp_ < kMultipliers) {
      RunMultiplier();
    } else {
      RunFinisher();
    }
  }

 private:
  __device__ __forceinline__ int Count() const { return kJoined ? products_.count : 1; }
  __device__ __forceinline__ const FewRowsProduct& Of(int i) const {
    return products_.of[kJoined ? i : 0];
  }

  __device__ __forceinline__ void RunMultiplier() const {
    RingPlace place, sums;
    uint32_t loaded = 0, normalized = 0;  // phases
    for (int i = 0; i < Count(); ++i) {
      const FewRowsProduct& p = Of(i);
      if (p.unnormalized != nullptr) {
        NormalizeRows(p, i, &normalized);
      } else if (i == 0) {
        WaitForEarlierKernels();
      }
      Multiply(p, loaded, &place, &sums);
      if (p.unnormalized == nullptr) loaded ^= 1;
    }
  }

  __device__ __forceinline__ void RunFinisher() const {
    RingPlace sums;
    WaitForEarlierKernels();
    for (int i = 0; i < Count(); ++i) {
      const FewRowsProduct& p = Of(i);
      if (i > 0) {
        AwaitBlocks(i * blocks_);
        ArriveOnce(&shared_.ready);
      }
      if (p.unnormalized == nullptr) {
        if (i > 0) OrderCopies();
        LoadRows(p);
      }
      Finish(p, &sums);
      if (kJoined) ArriveOfBlock();
    }
  }

  __device__ __forceinline__ void ArriveOnce(Barrier* barrier) const {
    __syncwarp();
    if (lane_ == 0) Arrive(barrier);
  }

  __device__ __forceinline__ void InitBarriers() const {
    if (threadIdx.x == 0) {
      for (int slot = 0; slot < products_.slots; ++slot) {
        InitBarrier(&shared_.full[slot], kLoaders);
        InitBarrier(&shared_.free[slot], kMultipliers);
      }
      for (int buffer = 0; buffer < 2; ++buffer) {
        InitBarrier(&shared_.summed[buffer], kMultipliers);
        InitBarrier(&shared_.taken[buffer], kFinishers);
      }
      for (Barrier& loaded : shared_.loaded) InitBarrier(&loaded, 1);
      InitBarrier(&shared_.normalized, kMultipliers);
      InitBarrier(&shared_.ready, 1);
      PublishBarriers();
    }
    __syncthreads();
  }

  // ---- blocks that wait for each other ----

  // That this block's results are there. The last of all lets the next kernel count from 0.
  __device__ __forceinline__ void ArriveOfBlock() const {
    const unsigned all = products_.count * blocks_;
    OrderCopies();  // as other blocks' loaders read the results
    __syncwarp();
    if (lane_ == 0 && CountOne(products_.arrived) + 1 == all) BeginCount(products_.arrived);
  }

  // Until so many blocks' are.
  __device__ __forceinline__ void AwaitBlocks(unsigned count) const {
    static_assert(kFinishers == 1);
    if (lane_ == 0) AwaitCount(products_.arrived, count);
    __syncwarp();
  }

  // ---- loaders ----

  // One of a tile's rows of weights; of those beyond the last, the last.
  __device__ __forceinline__ const uint16_t* WeightsOf(const FewRowsProduct& p, int tile,
                                                       int row) const {
    const bool low = row < kHalfRows;
    const int last = p.gated() && low ? p.n / 2 - 1 : p.n - 1;
    const int column = low ? p.Low(tile, row) : p.High(tile, row - kHalfRows);
    return p.w + static_cast<int64_t>(min(column, last)) * p.k;
  }

  // Each has some of a tile's rows, a lane a row.
  __device__ __forceinline__ void Load(const FewRowsProduct& p, int row, RingPlace* place) const {
    for (int tile = first_tile_; tile < p.tiles(); tile += blocks_) {
      const uint16_t* const weights = lane_ < kLoaderRows ? WeightsOf(p, tile, row) : p.w;
      for (int at = 0; at < p.k; at += kStageK, place->Next(products_.slots)) {
        const int bytes = min(kStageK, p.k - at) * 2;
        Barrier* const full = &shared_.full[place->slot];
        AwaitPhase(&shared_.free[place->slot], place->phase ^ 1);
        if (lane_ == 0) Expect(full, kLoaderRows * bytes);
        __syncwarp();
        if (lane_ >= kLoaderRows) continue;
        CopyBulk(ring_ + place->slot * kStageElements + row * kPieceStride, weights + at, bytes,
                 full);
      }
    }
  }

  // ---- the rows that enter ----

  // By one warp, a chunk after the other.
  __device__ __forceinline__ void LoadRows(const FewRowsProduct& p) const {
    for (int chunk = 0; chunk < kRowChunks; ++chunk) {
      Barrier* const loaded = &shared_.loaded[chunk];
      const int at = chunk * ChunkK(p), bytes = max(min(ChunkK(p), p.k - at), 0) * 2;
      if (lane_ == 0) Expect(loaded, p.rows * bytes);
      __syncwarp();
      if (lane_ < p.rows && bytes > 0) {
        CopyBulk(a_ + lane_ * p.a_row_elements() + at, p.a + lane_ * p.a_stride + at, bytes,
                 loaded);
      }
    }
  }
  // The columns of a chunk: whole stages.
  __device__ __forceinline__ static int ChunkK(const FewRowsProduct& p) {
    constexpr int kChunkStages = kRowChunks * kStageK;
    return (p.k + kChunkStages - 1) / kChunkStages * kStageK;
  }

  // Or by all multipliers: RmsNorm's result.
  __device__ __forceinline__ void NormalizeRows(const FewRowsProduct& p, int index,
                                                uint32_t* phase) const {
    const int thread = warp_ * kWarp + lane_, vectors = p.k / 4;
    const auto* const weights = reinterpret_cast<const float4*>(p.norm_weight);
    float4 weight[kNormVectors];
#pragma unroll
    for (int i = 0; i < kNormVectors; ++i) {
      const int at = i * kMultiplierThreads + thread;
      weight[i] = at < vectors ? weights[at] : float4{0, 0, 0, 0};
    }
    if (index == 0) {
      WaitForEarlierKernels();
    } else {
      AwaitPhase(&shared_.ready, (index - 1) % 2);
    }
    for (int row = 0; row < p.rows; ++row, *phase ^= 1) {
      const auto* const x = reinterpret_cast<const float4*>(p.unnormalized) + row * vectors;
      float4 v[kNormVectors];
#pragma unroll
      for (int i = 0; i < kNormVectors; ++i) {
        const int at = i * kMultiplierThreads + thread;
        v[i] = at < vectors ? __ldcg(x + at) : float4{0, 0, 0, 0};
      }
      float squares = 0;
#pragma unroll
      for (int i = 0; i < kNormVectors; ++i) {
        squares += v[i].x * v[i].x + v[i].y * v[i].y + v[i].z * v[i].z + v[i].w * v[i].w;
      }
      squares = WarpSum(squares);
      if (lane_ == 0) shared_.squares[row][warp_] = squares;
      ArriveOnce(&shared_.normalized);
      AwaitPhase(&shared_.normalized, *phase);
      float sum = 0;
#pragma unroll
      for (int warp = 0; warp < kMultipliers; ++warp) sum += shared_.squares[row][warp];
      const float scale = 1.0f / sqrtf(sum / static_cast<float>(p.k) + p.norm_eps);
#pragma unroll
      for (int i = 0; i < kNormVectors; ++i) {
        const int at = i * kMultiplierThreads + thread;
        if (at >= vectors) continue;
        const float4 &of = v[i], &w = weight[i];
        *reinterpret_cast<uint2*>(a_ + row * p.a_row_elements() + 4 * at) = {
            PackBf16(of.x * scale * w.x, of.y * scale * w.y),
            PackBf16(of.z * scale * w.z, of.w * scale * w.w)};
      }
    }
    ArriveOnce(&shared_.normalized);
    AwaitPhase(&shared_.normalized, *phase);
    *phase ^= 1;
  }

  // ---- multipliers ----

  // `loaded`: the parity of the phase in which the rows are.
  __device__ __forceinline__ void Multiply(const FewRowsProduct& p, uint32_t loaded,
                                           RingPlace* place, RingPlace* to) const {
    const int first_k = warp_ * kPartK;  // of a stage
    const uint16_t* w = ring_ + lane_ % 16 * kPieceStride + lane_ / 16 * 8 + first_k;
    // Nobody reads the sums of tokens that are not there.
    const int token = min(lane_ % kTokens, p.rows - 1);
    const uint16_t* a = a_ + token * p.a_row_elements() + lane_ / 8 * 8 + first_k;
    for (int tile = first_tile_; tile < p.tiles(); tile += blocks_) {
      float sums[4] = {};
      for (int at = 0; at < p.k; at += kStageK, place->Next(products_.slots)) {
        const int left = p.k - at - first_k;  // columns from this warp's first on
        if (p.unnormalized == nullptr && tile == first_tile_ && at % ChunkK(p) == 0) {
          AwaitPhase(&shared_.loaded[at / ChunkK(p)], loaded);
        }
        AwaitPhase(&shared_.full[place->slot], place->phase);
        if (left >= kPartK) {
          AddStage<true>(w, place->slot, a + at, left, sums);
        } else {
          AddStage<false>(w, place->slot, a + at, left, sums);
        }
      }
      AwaitPhase(&shared_.taken[to->slot], to->phase ^ 1);
      shared_.sums[to->slot][warp_][lane_] = {sums[0], sums[1], sums[2], sums[3]};
      ArriveOnce(&shared_.summed[to->slot]);
      to->NextOfTwo();
    }
  }

  // Adds a stage's products, and frees it before. kWhole: all columns of this warp are there.
  template <bool kWhole>
  __device__ __forceinline__ void AddStage(const uint16_t* w, int slot, const uint16_t* a, int left,
                                           float (&sums)[4]) const {
    uint32_t weights[kPartK / 16][4], rows[kPartK / 32][4];
#pragma unroll
    for (int step = 0; step < kPartK / 16; ++step) {
      if (!kWhole && step * 16 >= left) break;
      LoadMatrices(w + slot * kStageElements + step * 16, weights[step]);
    }
#pragma unroll
    for (int step = 0; step < kPartK / 32; ++step) {
      if (!kWhole && step * 32 >= left) break;
      LoadMatrices(a + step * 32, rows[step]);
    }
    ArriveOnce(&shared_.free[slot]);
#pragma unroll
    for (int step = 0; step < kPartK / 16; ++step) {
      if (!kWhole && step * 16 >= left) break;
      const uint4 of = {weights[step][0], weights[step][1], weights[step][2], weights[step][3]};
      MultiplyAdd(of, rows[step / 2][step % 2 * 2], rows[step / 2][step % 2 * 2 + 1], sums);
    }
  }

  // ---- finishers ----

  // A lane has two tokens for one low and high column.
  __device__ __forceinline__ void Finish(const FewRowsProduct& p, RingPlace* from) const {
    const int token = lane_ % 4 * 2;
    for (int tile = first_tile_; tile < p.tiles(); tile += blocks_) {
      const ResultColumns columns(p, tile, lane_ / 4);
      const ResultColumns::Before before[2] = {columns.Load(token), columns.Load(token + 1)};
      AwaitPhase(&shared_.summed[from->slot], from->phase);
      float4 sums = shared_.sums[from->slot][0][lane_];
#pragma unroll
      for (int part = 1; part < kMultipliers; ++part) {
        const float4& of = shared_.sums[from->slot][part][lane_];
        sums = {sums.x + of.x, sums.y + of.y, sums.z + of.z, sums.w + of.w};
      }
      ArriveOnce(&shared_.taken[from->slot]);
      columns.Store(token, {sums.x, sums.z}, before[0]);
      columns.Store(token + 1, {sums.y, sums.w}, before[1]);
      from->NextOfTwo();
    }
  }

  const FewRowsProducts& products_;
  uint16_t* const ring_;  // [slot][kTileRows][kPieceStride]
  uint16_t* const a_;     // [row][a_row_elements]
  FewRowsShared& shared_;
  const int warp_;  // of the multipliers, and after them of the finishers
  const int lane_;
  const int first_tile_, blocks_;
};

template <bool kJoined>
__global__ void __launch_bounds__(kFewRowsThreads, 1)
    MultiplyFewRowsKernel(const __grid_constant__ FewRowsProducts products) {
  if constexpr (kTmaCompiled) {
    FewRowsBlock<kJoined>(products, DynamicShared<std::byte>()).Run();
  } else {
    __trap();
  }
}

}  // namespace kvcake::cuda
