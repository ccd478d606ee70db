// The products of attention by wgmma.m64n64k16: a warpgroup's 64 rows at once, by keys and values
// that it reads from shared memory itself; for devices of compute capability 9.0. Device code of
// attention_cuda.cu.
#pragma once

#include <cstdint>

#include "ops/attention.h"
#include "ops/cuda_instructions.cuh"

namespace kvcake::cuda {

// Multiplies tiles of heads of up to kDimensions dimensions; zeros fill them up. Two warpgroups
// share what is staged, so that it is read from L2 half as often.
//
// A stage is panels of 64 keys by 64 dimensions, then such panels of values. A key's 64 dimensions
// are 128 bytes in a row, whose eight pieces of 16 bytes are permuted by key % 8: the 128-byte
// swizzle of PTX's manual. To it the keys' panels are K-major, the values' MN-major.
template <int kDimensions>
class WgmmaProducts {
 public:
  static constexpr bool kCompiled = kWgmmaCompiled;
  static constexpr int kDim = kDimensions, kOut = kDimensions;
  static constexpr int kTileRows = 128;
  static constexpr int kThreads = 2 * kTileRows;
  static constexpr int kRowsAtOnce = 64;
  static constexpr int kResident = 1;  // blocks of threads that registers allow
  static constexpr int kStages = 4;    // blocks of keys and values in memory
  static constexpr int kPanel = 64;    // dimensions
  static constexpr int kPanelElements = kAttentionBlock * kPanel;
  static constexpr int kKeyElements = kAttentionBlock * kDim;
  static constexpr int kStageElements = 2 * kKeyElements;
  static constexpr int kBytes = kStages * kStageElements * static_cast<int>(sizeof(uint16_t));
  static_assert(kDim % kPanel == 0);

  __device__ __forceinline__ explicit WgmmaProducts(uint4*) {}

  // Where 8 dimensions of a stage's key or value lie.
  static __device__ __forceinline__ uint16_t* Key(uint16_t* stage, int key, int dim) {
    return stage + dim / kPanel * kPanelElements + key * kPanel + (dim / 8 ^ key) % 8 * 8;
  }
  static __device__ __forceinline__ uint16_t* Value(uint16_t* stage, int key, int dim) {
    return Key(stage + kKeyElements, key, dim);
  }
  // What this thread has written to a stage is for the products of those that it meets next.
  static __device__ __forceinline__ void Publish() { PublishForWgmma(); }

  __device__ __forceinline__ uint4& Query(int step) { return queries_[step]; }

  // Queries by keys. All warps of the warpgroup, as AddValues.
  __device__ __forceinline__ void Score(const uint16_t* stage, float (&scores)[8][4]) {
#pragma unroll
    for (auto& columns : scores) {
#pragma unroll
      for (float& score : columns) score = 0.0f;
    }
    BeginWgmma(queries_, scores);
#pragma unroll
    for (int step = 0; step < kDim / 16; ++step) {
      const uint16_t* keys = stage + step / 4 * kPanelElements + step % 4 * 16;
      Wgmma<false>(queries_[step], Describe(keys), scores);
    }
    FinishWgmma(queries_, scores);
  }

  // Adds weights by values.
  __device__ __forceinline__ void AddValues(const uint16_t* stage, uint4 (&weights)[4],
                                            float (&sums)[kOut / 8][4]) const {
    BeginWgmma(weights, sums);
#pragma unroll
    for (int step = 0; step < 4; ++step) {
#pragma unroll
      for (int panel = 0; panel < kOut / kPanel; ++panel) {
        const uint16_t* values = stage + kKeyElements + panel * kPanelElements + step * 16 * kPanel;
        Wgmma<true>(weights[step], Describe(values), sums + panel * 8);
      }
    }
    FinishWgmma(weights, sums);
  }

 private:
  // A matrix that lies in one panel, for Wgmma: from eight of its keys to the next it is 1,024
  // bytes, and nowhere else does it stride.
  static __device__ __forceinline__ uint64_t Describe(const uint16_t* first) {
    constexpr uint64_t kSwizzle128 = 1;
    constexpr uint64_t kStride = 8 * kPanel * sizeof(uint16_t) / 16;
    return kSwizzle128 << 62 | kStride << 32 | kStride << 16 |
           (SharedAddress(first) & 0x3ffff) >> 4;
  }

  uint4 queries_[kDim / 16];
};

}  // namespace kvcake::cuda
