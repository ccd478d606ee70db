#include "ops/matmul_cuda_few.cuh"

#include <algorithm>

#include "base/check.h"
#include "ops/cuda_check.h"
#include "ops/cuda_kernels.h"
#include "ops/cuda_launch.h"

namespace kvcake::cuda {
namespace {

constexpr int kCapabilityMin = 90;
// Shared memory of a multiprocessor that products leave to the blocks of short kernels between
// them: without it these cannot start early, nor can what follows them.
constexpr int kLeftBytes = 4096;
// What has to be under way to keep memory busy.
constexpr int kRingBytesMin = 64 << 10;
// As many stages of the ring as have room; false if they are too few.
bool SizeRing(const CudaDevice& device, FewRowsProduct* p) {
  const int left = device.block_shared_bytes() - kLeftBytes - FewRowsSharedBytes(*p);
  p->slots = std::min(left / kStageBytes, kSlotsMax);
  return p->slots * kStageBytes >= kRingBytesMin;
}

}  // namespace

// Each block reads and normalizes all of the rows: that costs less than another kernel as long as
// they are very few.
bool ProductsNormalize(const CudaDevice& device, const Activations& rows) {
  constexpr int64_t kRowsMax = 2, kElementsMax = 4 * kNormVectors * kMultiplierThreads;
  return rows.rows <= kRowsMax && rows.k <= kElementsMax && device.capability() >= kCapabilityMin;
}

bool MultiplyFewRows(CudaDevice& device, const Activations& a, const PackedMatrix& w,
                     const ProductOut& out) {
  const int64_t tiles = (w.n() + kTileRows - 1) / kTileRows;
  if (a.rows > kFewRowsMax || device.capability() < kCapabilityMin ||
      tiles < device.multiprocessors()) {
    return false;
  }
  CHECK(a.k == w.k() && w.format() == WeightFormat::kBf16);
  CHECK(a.k % 16 == 0 && a.stride % 8 == 0);
  if (a.rows == 0) return true;
  FewRowsProduct p{.a = reinterpret_cast<const uint16_t*>(a.data),
                   .w = w.DeviceRows(),
                   .bias = w.DeviceBias(),
                   .a_stride = a.stride,
                   .rows = static_cast<int>(a.rows),
                   .n = static_cast<int>(w.n()),
                   .k = static_cast<int>(w.k()),
                   .out = out,
                   .unnormalized = a.unnormalized,
                   .norm_weight = a.norm_weight,
                   .norm_eps = a.norm_eps,
                   .tiles = static_cast<int>(tiles)};
  if (!SizeRing(device, &p)) return false;
  static const bool prepared = [&] {
    CUDA_CHECK(cudaFuncSetAttribute(MultiplyFewRowsKernel,
                                    cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    device.block_shared_bytes() - kLeftBytes));
    return true;
  }();
  static_cast<void>(prepared);
  LaunchEarly(device, {device.multiprocessors(), kFewRowsThreads, FewRowsSharedBytes(p)},
              MultiplyFewRowsKernel, p);
  return true;
}

}  // namespace kvcake::cuda
