// The products of attention by mma.sync.m16n8k16: a warp's 16 rows at once, on every device. Device
// code of attention_cuda.cu.
#pragma once

#include <cstdint>

#include "ops/attention.h"
#include "ops/cuda_instructions.cuh"

namespace kvcake::cuda {

// Multiplies tiles of heads of up to kDimensions dimensions; zeros fill them up. A block of threads
// computes kOutDimensions of the result.
template <int kDimensions, int kOutDimensions>
class MmaProducts {
 public:
  static constexpr bool kCompiled = true;
  static constexpr int kDim = kDimensions, kOut = kOutDimensions;
  static constexpr int kTileRows = 64;
  static constexpr int kThreads = 2 * kTileRows;
  static constexpr int kRowsAtOnce = 16;
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
  // What this thread has written to a stage is for the products of those that it meets next.
  static __device__ __forceinline__ void Publish() {}

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

}  // namespace kvcake::cuda
