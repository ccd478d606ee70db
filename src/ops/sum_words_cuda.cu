#include "ops/cuda_kernels.h"
#include "ops/cuda_launch.h"
#include "ops/cuda_warp.cuh"

namespace kvcake::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kBlocksOfMultiprocessor = 4;  // 2,048 threads
constexpr int kLoads = 4;                   // of 16 bytes, that a thread has in flight

using Word = unsigned long long;  // as atomicAdd has it

__global__ void __launch_bounds__(kThreads)
    SumPairs(const ulonglong2* pairs, int64_t count, Word* out) {
  const int64_t threads = static_cast<int64_t>(gridDim.x) * kThreads;
  int64_t at = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  Word sum = 0;
  for (; at + (kLoads - 1) * threads < count; at += kLoads * threads) {
    ulonglong2 loaded[kLoads];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) loaded[i] = __ldcs(pairs + at + i * threads);
#pragma unroll
    for (int i = 0; i < kLoads; ++i) sum += loaded[i].x + loaded[i].y;
  }
  for (; at < count; at += threads) sum += pairs[at].x + pairs[at].y;
  __shared__ Word warps[kThreads / kWarp];
  sum = WarpSum(sum);
  if (threadIdx.x % kWarp == 0) warps[threadIdx.x / kWarp] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  Word block = 0;
  for (const Word warp : warps) block += warp;
  atomicAdd(out, block);
}

}  // namespace

void SumWords(CudaDevice& device, std::span<const uint64_t> words, uint64_t* sum) {
  const int64_t blocks = device.multiprocessors() * kBlocksOfMultiprocessor;
  Launch(device, {blocks, kThreads}, SumPairs, reinterpret_cast<const ulonglong2*>(words.data()),
         std::ssize(words) / 2, reinterpret_cast<Word*>(sum));
}

}  // namespace kvcake::cuda
