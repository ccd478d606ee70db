// Where kernels run, and with what arithmetic: the CPU's thread pool and scratch per worker, or the
// CUDA device.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "base/status.h"
#include "base/thread_pool.h"
#include "kv/kv_layout.h"
#include "kv/page_pool.h"
#include "ops/buffer.h"

namespace kvcake {

class CudaDevice;  // ops/cuda_device.h
struct Kernels;    // ops/kernels.h

// The CPU's paths, the fastest first.
inline constexpr NumericPath kCpuPaths[] = {NumericPath::kBf16Amx, NumericPath::kBf16Dot,
                                            NumericPath::kF32Fma, NumericPath::kF32};

// Whether this machine can run the kernels of a path, or why not. kF32 runs everywhere.
Status CheckPath(NumericPath path);
inline bool PathAvailable(NumericPath path) { return CheckPath(path).has_value(); }
// The fastest path that this machine's CPU can run.
NumericPath BestPath();

constexpr bool OnCuda(NumericPath path) { return path == NumericPath::kBf16Tensor; }
// What the kernels of a path read and write.
constexpr Memory MemoryOf(NumericPath path) {
  return OnCuda(path) ? Memory::kDevice : Memory::kHost;
}

// The CPU's, or the CUDA device's.
std::string DeviceName(NumericPath path);
// For the pages of a model on that path. Fails as CudaDevice::Get does.
Result<PageMemory> PageMemoryOf(NumericPath path);

// What the operations of this room take first. Borrows the pool, which must outlive it. Operations
// are called from one thread, one at a time. Those of a CUDA device are enqueued, and take and give
// pointers and spans of its memory.
class Compute {
 public:
  // The path must be available.
  explicit Compute(ThreadPool& pool, NumericPath path = BestPath());

  ThreadPool& pool() const { return pool_; }
  NumericPath path() const { return path_; }
  // nullptr on the CPU.
  CudaDevice* cuda() const { return cuda_; }
  // The CPU's.
  const Kernels& kernels() const { return *kernels_; }
  // kScratchBytes for one worker of the pool, contents undefined between operations.
  std::byte* scratch(int worker) const { return scratch_.data() + worker * kScratchBytes; }

  // Where kernels read a copy of the values.
  Buffer Put(std::span<const float> values) const;
  // Waits until all operations have been done.
  void Wait() const;

  static constexpr int64_t kScratchBytes = 2 << 20;

 private:
  ThreadPool& pool_;
  const NumericPath path_;
  CudaDevice* const cuda_;
  const Kernels* const kernels_;
  const Buffer scratch_;  // [worker][kScratchBytes]
};

// Rows that are about to enter a product, in the element type of their path: f32 for kF32Fma and
// kF32, bf16 for the others. A view; k is a multiple of 16.
struct Activations {
  std::byte* data = nullptr;  // 64-byte aligned
  int64_t rows = 0;
  int64_t k = 0;
  int64_t stride = 0;  // elements from row to row
  // Room for the rows as products with int8 weights take them.
  std::byte* quantized = nullptr;  // [rows][quantized_stride]
  int64_t quantized_stride = 0;    // bytes
  float* scales = nullptr;         // [rows]
  float* sums = nullptr;           // [rows], of the quantised values
  // Rows that products on CUDA normalize themselves, and of which `data` has room for the result
  // (LazyRmsNorm).
  const float* unnormalized = nullptr;  // [rows][k]; nullptr: `data` has the rows
  const float* norm_weight = nullptr;   // [k]
  float norm_eps = 0;
};

// Owns the memory of up to max_rows rows of up to k elements.
class ActivationBuffer {
 public:
  ActivationBuffer() = default;
  ActivationBuffer(NumericPath path, int64_t max_rows, int64_t k);
  Activations Rows(int64_t rows) const;

 private:
  int64_t max_rows_ = 0;
  int64_t k_ = 0;
  int64_t stride_ = 0;
  int64_t quantized_stride_ = 0;
  Buffer buffer_;     // [max_rows][stride] of the path's elements
  Buffer quantized_;  // [max_rows][quantized_stride] bytes, then scales and sums; untouched memory
                      // costs nothing. None on CUDA, which has no int8 products
};

// The CPU's paths that multiply bf16.
constexpr bool MultipliesBf16(NumericPath path) {
  return path == NumericPath::kBf16Dot || path == NumericPath::kBf16Amx;
}
constexpr int64_t ActivationBytes(NumericPath path) {
  return MultipliesBf16(path) || OnCuda(path) ? 2 : 4;
}
// The size of one quantised value: int8, or int16 where bytes must be widened to be multiplied.
constexpr int64_t QuantizedBytes(NumericPath path) { return MultipliesBf16(path) ? 1 : 2; }

}  // namespace kvcake
