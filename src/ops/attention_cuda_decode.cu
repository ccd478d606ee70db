#include "ops/attention_cuda_decode.h"

#include <algorithm>

#include "base/check.h"
#include "ops/attention_cuda_decode.cuh"
#include "ops/cuda_check.h"
#include "ops/cuda_device.h"
#include "ops/cuda_launch.h"

namespace kvcake {
namespace {

constexpr int kOutsMax = 4;

// A block of threads a task, KV head, and kOut dimensions of the result.
template <typename Shape>
__global__ void __launch_bounds__(Shape::kThreads, cuda::kDecodeResident)
    DecodeTasks(const __grid_constant__ cuda::DecodeArgs args) {
  cuda::LetNextKernelStart();
  const int of_task = args.run.kv_heads * Shape::kOuts;
  const int block = static_cast<int>(blockIdx.x), head = block % of_task;
  const cuda::AttentionTask task = args.run.tasks[block / of_task];
  const int out = head % Shape::kOuts;
  if (task.rows == 0 || out * Shape::kOut >= args.run.head_dim) {
    cuda::WaitForEarlierKernels();
    return;
  }
  cuda::Decode<Shape>(args, task, head / Shape::kOuts, out, cuda::DynamicShared<std::byte>()).Run();
}

}  // namespace

template <int kDim, int kOuts>
CudaDecode::Kernel CudaDecode::KernelOf(int rows) {
  using Shape = cuda::DecodeShape<kDim, kOuts>;
  return {.outs = kOuts,
          .slot_bytes = Shape::SlotBytes(),
          .other_bytes = Shape::Bytes(0, rows),
          .decode = DecodeTasks<Shape>};
}

template <int kDim>
std::vector<CudaDecode::Kernel> CudaDecode::KernelsOf(int rows) {
  static_assert(kOutsMax == 4);
  return {KernelOf<kDim, 4>(rows), KernelOf<kDim, 2>(rows), KernelOf<kDim, 1>(rows)};
}

std::vector<CudaDecode::Kernel> CudaDecode::KernelsFor(int head_dim, int rows) {
  if (head_dim <= 64) return KernelsOf<64>(rows);
  if (head_dim <= 128) return KernelsOf<128>(rows);
  static_assert(kAttentionHeadDimMax == 256);
  return KernelsOf<256>(rows);
}

CudaDecode::CudaDecode(const Compute& compute, const AttentionShape& shape, int64_t slices)
    : compute_(compute), kv_heads_(shape.kv_heads) {
  const int group = shape.heads / shape.kv_heads;
  tile_rows_ = group > 8 ? cuda::kDecodeRowsMax : 8;
  kernels_ = KernelsFor(shape.head_dim, tile_rows_);
  if (tile_rows_ > 8 && Slots(kernels_.back(), false) < 2) {
    tile_rows_ = 8;
    kernels_ = KernelsFor(shape.head_dim, tile_rows_);
  }
  CHECK(Slots(kernels_.back(), false) >= 1);
  tiles_ = (group + tile_rows_ - 1) / tile_rows_;
  for (const Kernel& kernel : kernels_) {
    const int slots = std::max(Slots(kernel, false), Slots(kernel, true));
    CUDA_CHECK(cudaFuncSetAttribute(kernel.decode, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    kernel.other_bytes + slots * kernel.slot_bytes));
    CUDA_CHECK(cudaFuncSetAttribute(kernel.decode, cudaFuncAttributePreferredSharedMemoryCarveout,
                                    cudaSharedmemCarveoutMaxShared));
  }
  arrived_ = Buffer(slices * tiles_ * kv_heads_ * kOutsMax * sizeof(uint32_t), Memory::kDevice);
  compute.cuda()->Zero(arrived_.data(), arrived_.size());
}

int CudaDecode::Slots(const Kernel& kernel, bool crowded) const {
  constexpr int kReserved = 1024;  // by CUDA, of each resident block
  const CudaDevice& device = *compute_.cuda();
  const auto slots = [&](int bytes) {
    return std::clamp((bytes - kernel.other_bytes) / kernel.slot_bytes, 0, cuda::kDecodeSlotsMax);
  };
  const int all = slots(device.block_shared_bytes());
  // As many blocks are resident as registers allow, if that leaves one load under way while another
  // is read.
  const int shared =
      slots(device.multiprocessor_shared_bytes() / cuda::kDecodeResident - kReserved);
  return crowded && shared >= 2 ? std::min(shared, all) : all;
}

// Sharing the result's dimensions spreads the values' loads, and repeats those of the keys: it pays
// while multiprocessors would be idle otherwise.
DecodeLaunch CudaDecode::LaunchOf(std::span<const cuda::AttentionTask> tasks) const {
  int64_t keys = 0;
  for (const cuda::AttentionTask& task : tasks) keys += task.keys;
  const int64_t multiprocessors = compute_.cuda()->multiprocessors();
  for (const Kernel& kernel : kernels_) {
    const int64_t of_task = int64_t{kv_heads_} * kernel.outs;
    const int64_t blocks = std::ssize(tasks) * of_task;
    const DecodeLaunch launch = {.outs = kernel.outs,
                                 .slots = Slots(kernel, blocks > multiprocessors)};
    const bool idle = keys * of_task <= multiprocessors * kAttentionPartial &&
                      blocks <= multiprocessors * cuda::kDecodeResident;
    if (kernel.outs == 1 || (idle && launch.slots >= 2)) return launch;
  }
  CHECK(false);
}

void CudaDecode::Run(cuda::AttentionArgs args, int64_t tasks, const DecodeLaunch& launch) const {
  const Kernel& kernel = *std::ranges::find(kernels_, launch.outs, &Kernel::outs);
  args.tile_rows = tile_rows_;
  const cuda::DecodeArgs decode = {
      .run = args, .arrived = arrived_.as<uint32_t>(), .slots = launch.slots};
  const int shared = kernel.other_bytes + launch.slots * kernel.slot_bytes;
  cuda::LaunchEarly(*compute_.cuda(),
                    {tasks * kv_heads_ * launch.outs, cuda::kDecodeThreads, shared}, kernel.decode,
                    decode);
}

}  // namespace kvcake
