// The steps from scores to weights that every kernel of attention on CUDA takes alike, so that its
// rows have the same bits. They are written with intrinsics, as the compiler may fuse a * b + c
// here and not there. Device code.
#pragma once

#include <cmath>

#include "ops/attention_cuda_sums.cuh"

namespace kvcake::cuda {

// Scores of 16 rows by 64 keys are 16 x 8 products; `half` 0 is this thread's row of the first 8.

constexpr float kLog2E = 1.44269504f;

// Adds ALiBi to the scores of keys from first_key on, this thread's first, by the slopes of its two
// rows. Slope and product are rounded to bf16, as Hugging Face transformers has them.
__device__ __forceinline__ void AddAlibi(const float (&slopes)[2], int first_key, int head_dim,
                                         float (&scores)[8][4]) {
  const float scale = __frsqrt_rn(static_cast<float>(head_dim));
#pragma unroll
  for (int n = 0; n < 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float position = RoundToBf16(static_cast<float>(first_key + n * 8 + i % 2));
      const float bias = RoundToBf16(__fmul_rn(slopes[i / 2], position));
      scores[n][i] = __fmaf_rn(bias, scale, scores[n][i]);
    }
  }
}

// The largest score of a row, as a power of two. All lanes of the warp.
__device__ __forceinline__ float RowMax(const float (&scores)[8][4], int half) {
  float max = -INFINITY;
#pragma unroll
  for (const auto& columns : scores) {
    max = fmaxf(max, fmaxf(columns[2 * half], columns[2 * half + 1]));
  }
  // The row's other columns are in this lane's group of four.
  max = fmaxf(max, __shfl_xor_sync(0xffffffff, max, 1));
  max = fmaxf(max, __shfl_xor_sync(0xffffffff, max, 2));
  return __fmul_rn(max, kLog2E);
}

// One step of online softmax, from what a row has seen to a block of keys more.
struct SoftmaxStep {
  float max;
  float base;
  float scale;  // of what has been summed so far

  // `before` and `of_block`: the largest scores.
  static __device__ __forceinline__ SoftmaxStep From(float before, float of_block) {
    const float max = fmaxf(before, of_block);
    // While the row has seen nothing: any number, as weights and sums are zeros.
    const float base = max == -INFINITY ? 0.0f : max;
    return {max, base, Exp2(__fsub_rn(before, base))};
  }

  // Turns this thread's scores of a row into weights; returns their sum.
  __device__ __forceinline__ float Weigh(float (&scores)[8][4], int half) const {
    float sum = 0.0f;
#pragma unroll
    for (auto& columns : scores) {
#pragma unroll
      for (int i = 2 * half; i < 2 * half + 2; ++i) {
        columns[i] = Exp2(__fmaf_rn(columns[i], kLog2E, -base));
        sum = __fadd_rn(sum, columns[i]);
      }
    }
    return sum;
  }
};

}  // namespace kvcake::cuda
