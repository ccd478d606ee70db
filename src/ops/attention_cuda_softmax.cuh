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

// The largest of two rows' scores in two blocks, [row][block], as powers of two: side by side, as
// each by itself mostly waits for what it has just computed. All lanes of the warp.
__device__ __forceinline__ void RowMaxes(const float (&lower)[8][4], const float (&upper)[8][4],
                                         float (&maxes)[2][2]) {
#pragma unroll
  for (int n = 0; n < 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float scores[2] = {fmaxf(lower[n][2 * (i / 2)], lower[n][2 * (i / 2) + 1]),
                               fmaxf(upper[n][2 * (i / 2)], upper[n][2 * (i / 2) + 1])};
      float& max = maxes[i / 2][i % 2];
      max = n == 0 ? scores[i % 2] : fmaxf(max, scores[i % 2]);
    }
  }
#pragma unroll
  for (int lanes = 1; lanes < 4; lanes *= 2) {
    float others[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) others[i] = __shfl_xor_sync(0xffffffff, maxes[i / 2][i % 2], lanes);
#pragma unroll
    for (int i = 0; i < 4; ++i) maxes[i / 2][i % 2] = fmaxf(maxes[i / 2][i % 2], others[i]);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    maxes[i / 2][i % 2] = __fmul_rn(fmaxf(maxes[i / 2][i % 2], -INFINITY), kLog2E);
  }
}

// The largest score of a row, as a power of two. All lanes of the warp.
__device__ __forceinline__ float RowMax(const float (&scores)[8][4], int half) {
  float max = -INFINITY;
#pragma unroll
  for (int n = 0; n < 8; ++n) {
    max = fmaxf(max, fmaxf(scores[n][2 * half], scores[n][2 * half + 1]));
  }
  // The row's other columns are in this lane's group of four.
  max = fmaxf(max, __shfl_xor_sync(0xffffffff, max, 1));
  max = fmaxf(max, __shfl_xor_sync(0xffffffff, max, 2));
  return __fmul_rn(max, kLog2E);
}

// Weights are powers of two of scores less a row's `max`, which follows the largest score only when
// that is so much above: weights of up to 2^8 are as precise, and what has been summed so far need
// hardly ever be scaled.
constexpr float kMaxSlack = 8.0f;

// A row's max after a block whose largest score is given.
__device__ __forceinline__ float NextMax(float before, float of_block) {
  return of_block > __fadd_rn(before, kMaxSlack) ? of_block : before;
}

// One step of online softmax, from what a row has seen to a block of keys more.
struct SoftmaxStep {
  float max;
  float base;
  float scale;  // of what has been summed so far

  static __device__ __forceinline__ SoftmaxStep From(float before, float of_block) {
    const float max = NextMax(before, of_block);
    // While the row has seen nothing: any number, as weights and sums are zeros.
    const float base = max == -INFINITY ? 0.0f : max;
    return {max, base, Exp2(__fsub_rn(before, base))};
  }

  // Turns this thread's scores of a row into weights; returns their sum.
  __device__ __forceinline__ float Weigh(float (&scores)[8][4], int half) const {
    float sum = 0.0f;
#pragma unroll
    for (int n = 0; n < 8; ++n) {
#pragma unroll
      for (int i = 2 * half; i < 2 * half + 2; ++i) {
        scores[n][i] = Exp2(__fmaf_rn(scores[n][i], kLog2E, -base));
        sum = __fadd_rn(sum, scores[n][i]);
      }
    }
    return sum;
  }
};

}  // namespace kvcake::cuda
