#include "ops/matmul_cuda_few.cuh"

#include "base/check.h"
#include "ops/cuda_counters.h"
#include "ops/cuda_launch.h"

namespace kvcake::cuda {
namespace {

template <typename T>
int64_t TilesOf(const FewRowsProduct& p) {
  return (p.n + T::kTileRows - 1) / T::kTileRows;
}

// Whether the chains of all tiles have room.
template <typename T>
bool CanSplit(const FewRowsProduct& p) {
  constexpr int64_t kTileBytes = kChains * T::kTokenTiles * T::kThreads * sizeof(float4);
  const int64_t tiles = TilesOf<T>(p);
  return tiles <= kCountersMax && tiles * kTileBytes <= CudaDevice::kScratchBytes;
}

template <typename T>
void Start(CudaDevice& device, FewRowsProduct p) {
  CHECK(p.rows <= T::kTokenTiles * kTokenTile);
  const auto kernel = MultiplyFewRowsKernel<T>;
  static const bool prepared = [kernel] {
    CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    T::SharedBytes(T::kTokenTiles * kTokenTile)));
    return true;
  }();
  static_cast<void>(prepared);
  if constexpr (T::kSplit) {
    CHECK(CanSplit<T>(p));
    p.partials = reinterpret_cast<float4*>(device.scratch());
    p.arrived = CountersOf(device);
  }
  LaunchEarly(device, {TilesOf<T>(p) * T::kChainBlocks, T::kThreads, T::SharedBytes(p.rows)},
              kernel, p);
}

// A sum's chains are of the warps of a block: least to do when it ends, but each block reads all
// of the rows that enter.
using Narrow = FewRowsTuning<1, 1, kChains, /*split=*/false, /*depth=*/8, /*round=*/4, 3>;

// Each block reads what enters for more rows of the weights. Where there are too few of those to
// give every multiprocessor some, a block has one chain.
template <int kTokenTiles>
void StartWide(CudaDevice& device, const FewRowsProduct& p) {
  // With what enters they fit in 99 KiB, which is what an L4's blocks can have, and in registers.
  constexpr int kDepth = kTokenTiles > 4 ? 4 : 8, kRound = kTokenTiles > 4 ? 2 : 4;
  using Whole = FewRowsTuning<kTokenTiles, 8, 1, /*split=*/false, kDepth, kRound, 2>;
  using Split = FewRowsTuning<kTokenTiles, 8, 1, /*split=*/true, kDepth, kRound, 2>;
  static_assert(Whole::SharedBytes(kTokenTiles * kTokenTile) <= 99 << 10);
  if (TilesOf<Whole>(p) < device.multiprocessors() && CanSplit<Split>(p)) {
    Start<Split>(device, p);
  } else {
    Start<Whole>(device, p);
  }
}

}  // namespace

void MultiplyFewRows(CudaDevice& device, const Activations& a, const PackedMatrix& w,
                     const ProductOut& out) {
  CHECK(a.k == w.k() && w.format() == WeightFormat::kBf16);
  CHECK(a.rows <= kFewRowsMax && a.k % 8 == 0 && a.stride % 8 == 0);
  if (a.rows == 0) return;
  const FewRowsProduct p{.a = reinterpret_cast<const uint16_t*>(a.data),
                         .w = w.DeviceRows(),
                         .bias = w.DeviceBias(),
                         .a_stride = a.stride,
                         .rows = static_cast<int>(a.rows),
                         .n = static_cast<int>(w.n()),
                         .k = static_cast<int>(w.k()),
                         .out = out};
  if (p.rows <= 4) return Start<Narrow>(device, p);
  if (p.rows <= kTokenTile) return StartWide<1>(device, p);
  if (p.rows <= 2 * kTokenTile) return StartWide<2>(device, p);
  if (p.rows <= 4 * kTokenTile) return StartWide<4>(device, p);
  StartWide<8>(device, p);
}

}  // namespace kvcake::cuda
