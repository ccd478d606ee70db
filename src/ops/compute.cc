#include "ops/compute.h"

#include <algorithm>
#include <iterator>

#include "base/check.h"
#include "base/cpu.h"
#include "ops/cuda_device.h"
#include "ops/kernels.h"

namespace kvcake {
namespace {

const Kernels* KernelsFor(NumericPath path) {
  CHECK(PathAvailable(path));
  switch (path) {
    case NumericPath::kBf16Amx:
      return AmxKernels();
    case NumericPath::kBf16Dot:
      return Avx512Kernels();
    case NumericPath::kF32Fma:
      return NeonKernels() != nullptr ? NeonKernels() : Avx2Kernels();
    case NumericPath::kBf16Tensor:
      return nullptr;
    default:
      return PortableKernels();
  }
}

// An odd number of cache lines from row to row, so that the rows of a tile fall into different
// sets of the first-level cache.
int64_t PaddedRowBytes(int64_t bytes) { return ((bytes + 63) / 64 | 1) * 64; }

}  // namespace

Status CheckPath(NumericPath path) {
  std::string why;
  switch (path) {
    case NumericPath::kBf16Amx:
      if (const Status& amx = AskForAmx(); !amx) {
        why = ": " + amx.error().message;
      } else if (AmxKernels() != nullptr && Cpu().avx512_bf16) {
        return {};
      }
      break;
    case NumericPath::kBf16Dot:
      if (Avx512Kernels() != nullptr && Cpu().avx512_bf16) return {};
      break;
    case NumericPath::kF32Fma:
      if (NeonKernels() != nullptr || (Avx2Kernels() != nullptr && Cpu().avx2_fma)) return {};
      break;
    case NumericPath::kF32:
      return {};
    case NumericPath::kBf16Tensor:
      return CudaDevice::Get().map([](auto) {});
    case NumericPath::kUnknown:
      break;
  }
  return Fail(ErrorCode::kUnsupported, "this CPU cannot run the numeric path {}{}",
              NumericPathName(path), why);
}

NumericPath BestPath() {
  return *std::find_if(std::begin(kCpuPaths), std::end(kCpuPaths), PathAvailable);
}

std::string DeviceName(NumericPath path) {
  return OnCuda(path) ? CudaDevice::Get().value()->name() : CpuName();
}

Result<PageMemory> PageMemoryOf(NumericPath path) {
  if (!OnCuda(path)) return PageMemory::Host();
  ASSIGN_OR_RETURN(CudaDevice* const device, CudaDevice::Get());
  return PageMemory{.segment_bytes_max = UINT64_MAX,
                    .allocate = [device](uint64_t bytes) { return device->Allocate(bytes); },
                    .free = [device](std::byte* segment, uint64_t) { device->Free(segment); }};
}

static_assert(Compute::kScratchBytes >= kAttendScratchBytes);
static_assert(Compute::kScratchBytes >= 2 * kMultiplyScratchBytes);

Compute::Compute(ThreadPool& pool, NumericPath path)
    : pool_(pool),
      path_(path),
      cuda_(OnCuda(path) ? CudaDevice::Get().value() : nullptr),
      kernels_(KernelsFor(path)),
      scratch_(cuda_ != nullptr ? 0 : static_cast<uint64_t>(pool.size()) * kScratchBytes) {}

Buffer Compute::Put(std::span<const float> values) const {
  return CopyOf(MemoryOf(path_), std::as_bytes(values));
}

void Compute::Wait() const {
  if (cuda_ != nullptr) cuda_->Wait();
}

ActivationBuffer::ActivationBuffer(NumericPath path, int64_t max_rows, int64_t k)
    : max_rows_(max_rows),
      k_(k),
      stride_(PaddedRowBytes(k * ActivationBytes(path)) / ActivationBytes(path)),
      quantized_stride_(PaddedRowBytes(k * QuantizedBytes(path))),
      buffer_(static_cast<uint64_t>(max_rows * stride_ * ActivationBytes(path)), MemoryOf(path)),
      quantized_(OnCuda(path)
                     ? 0
                     : static_cast<uint64_t>(max_rows) * (quantized_stride_ + 2 * sizeof(float))) {
  CHECK(k % 16 == 0);
}

Activations ActivationBuffer::Rows(int64_t rows) const {
  CHECK(rows <= max_rows_);
  Activations activations{.data = buffer_.data(), .rows = rows, .k = k_, .stride = stride_};
  if (quantized_.size() == 0) return activations;
  auto* scales = reinterpret_cast<float*>(quantized_.data() + max_rows_ * quantized_stride_);
  activations.quantized = quantized_.data();
  activations.quantized_stride = quantized_stride_;
  activations.scales = scales;
  activations.sums = scales + max_rows_;
  return activations;
}

}  // namespace kvcake
