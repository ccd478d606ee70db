// Decode on CUDA: attention of slices of one row each, over their partials side by side. Private to
// the .cu files of attention.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ops/attention.h"
#include "ops/attention_cuda_sums.cuh"
#include "ops/buffer.h"
#include "ops/compute.h"

namespace kvcake {

namespace cuda {
struct DecodeArgs;
}

// How a run is shared out to blocks of threads; results do not depend on it.
struct DecodeLaunch {
  int outs = 1;   // blocks a task and KV head, which share the result's dimensions
  int slots = 0;  // of each block's ring in shared memory
};

class CudaDecode {
 public:
  // Borrows `compute`. Runs have up to `slices` slices.
  CudaDecode(const Compute& compute, const AttentionShape& shape, int64_t slices);

  // The most rows of a task: heads of a slice's one token.
  int tile_rows() const { return tile_rows_; }
  // Those of one slice.
  int tiles() const { return tiles_; }
  DecodeLaunch LaunchOf(std::span<const cuda::AttentionTask> tasks) const;
  // Enqueues `tasks` of args.tasks. The last block of threads that has a tile's partial merges them
  // all. args.tile_rows is set here.
  void Run(cuda::AttentionArgs args, int64_t tasks, const DecodeLaunch& launch) const;

 private:
  // The kernel whose blocks share the result's dimensions by `outs`.
  struct Kernel {
    int outs;
    int slot_bytes;
    int other_bytes;  // of shared memory, besides the slots
    void (*decode)(cuda::DecodeArgs args);
  };

  template <int kDim, int kOuts>
  static Kernel KernelOf(int rows);
  template <int kDim>
  static std::vector<Kernel> KernelsOf(int rows);
  static std::vector<Kernel> KernelsFor(int head_dim, int rows);
  // `crowded`: there are more blocks than multiprocessors.
  int Slots(const Kernel& kernel, bool crowded) const;

  const Compute& compute_;
  const int kv_heads_;
  int tile_rows_;
  int tiles_;
  std::vector<Kernel> kernels_;  // of most outs first, down to one
  Buffer arrived_;
};

}  // namespace kvcake
