#include "ops/matmul_cuda_few.cuh"

#include <algorithm>
#include <utility>

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

// The products that run in the next kernel.
class Joined : public GatheredOperations {
 public:
  explicit Joined(CudaDevice& device) : device_(device) {
    for (const auto kernel : {MultiplyFewRowsKernel<false>, MultiplyFewRowsKernel<true>}) {
      CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      device.block_shared_bytes() - kLeftBytes));
    }
  }

  void set_join(Join join) { join_ = join; }

  // False where shared memory has no room for its rows and a ring.
  bool Add(const FewRowsProduct& product) {
    if (!HasRing(With(FewRowsProducts(), product))) return false;
    if (products_.count == FewRowsProducts::kMax) device_.EnqueueGathered();
    products_ = With(products_, product);
    device_.SetGathered(this);
    if (join_ == Join::kNo) device_.EnqueueGathered();
    return true;
  }

  void Enqueue() override {
    const FewRowsProducts products = std::exchange(products_, {});
    const Blocks blocks(device_.multiprocessors(), kFewRowsThreads, FewRowsSharedBytes(products));
    if (products.count == 1) {
      LaunchEarly(device_, blocks, MultiplyFewRowsKernel<false>, products);
    } else if (join_ == Join::kEarly) {
      LaunchEarly(device_, blocks, MultiplyFewRowsKernel<true>, products);
    } else {
      LaunchEarlyTogether(device_, blocks, MultiplyFewRowsKernel<true>, products);
    }
  }

 private:
  // With as many stages of the ring as have room.
  FewRowsProducts With(FewRowsProducts products, const FewRowsProduct& product) const {
    products.of[products.count++] = product;
    products.row_elements =
        std::max(products.row_elements, product.rows * product.a_row_elements());
    products.arrived = device_.arrived();
    products.slots = 0;
    const int left = device_.block_shared_bytes() - kLeftBytes - FewRowsSharedBytes(products);
    products.slots = std::min(left / kStageBytes, kSlotsMax);
    return products;
  }
  static bool HasRing(const FewRowsProducts& products) {
    return products.slots * kStageBytes >= kRingBytesMin;
  }

  CudaDevice& device_;
  FewRowsProducts products_;
  Join join_ = Join::kNo;
};

Joined& JoinedOf(CudaDevice& device) {
  static auto* const joined = new Joined(device);  // there is one device
  return *joined;
}

}  // namespace

void JoinProducts(CudaDevice& device, Join join) {
  device.EnqueueGathered();
  JoinedOf(device).set_join(join);
}

// Each block reads and normalizes all of the rows: that costs less than another kernel as long as
// they are very few.
bool ProductsNormalize(const CudaDevice& device, const Activations& rows) {
  constexpr int64_t kRowsMax = 2, kElementsMax = 4 * kNormVectors * kMultiplierThreads;
  return rows.rows <= kRowsMax && rows.k <= kElementsMax && device.capability() >= kCapabilityMin;
}

bool MultiplyFewRows(CudaDevice& device, const Activations& a, const PackedMatrix& w,
                     const ProductOut& out) {
  if (a.rows > kFewRowsMax || device.capability() < kCapabilityMin) return false;
  const FewRowsProduct product = {.a = reinterpret_cast<const uint16_t*>(a.data),
                                  .w = w.DeviceRows(),
                                  .bias = w.DeviceBias(),
                                  .a_stride = a.stride,
                                  .rows = static_cast<int>(a.rows),
                                  .n = static_cast<int>(w.n()),
                                  .k = static_cast<int>(w.k()),
                                  .out = out,
                                  .unnormalized = a.unnormalized,
                                  .norm_weight = a.norm_weight,
                                  .norm_eps = a.norm_eps};
  if (product.tiles() < device.multiprocessors()) return false;
  CHECK(a.k == w.k() && w.format() == WeightFormat::kBf16);
  CHECK(a.k % 16 == 0 && a.stride % 8 == 0);
  return a.rows == 0 || JoinedOf(device).Add(product);
}

}  // namespace kvcake::cuda
