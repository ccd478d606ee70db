// The CUDA device of this process: its memory, its stream, and copies between it and the host.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "base/status.h"

struct CUstream_st;

namespace kvcake {

// Operations that have been asked for and not been enqueued yet, as those to come may join them.
class GatheredOperations {
 public:
  virtual void Enqueue() = 0;

 protected:
  ~GatheredOperations() = default;
};

// Operations are enqueued on one stream, from one thread (they share the scratch, and memory is
// freed behind them), and happen in order. What goes wrong on the device afterwards ends the
// process with CUDA's message: its memory can't be trusted then.
class CudaDevice {
 public:
  // The first device that CUDA_VISIBLE_DEVICES leaves, opened by the first call and never closed.
  // kUnsupported says what is missing: a build with CUDA, a driver, a device.
  static Result<CudaDevice*> Get();

  const std::string& name() const { return name_; }
  int capability() const { return capability_; }  // to compute; 90 is 9.0
  int multiprocessors() const { return multiprocessors_; }
  // Shared memory: the most of one block of threads, and of all that a multiprocessor holds.
  int block_shared_bytes() const { return block_shared_bytes_; }
  int multiprocessor_shared_bytes() const { return multiprocessor_shared_bytes_; }
  uint64_t memory_bytes() const { return memory_bytes_; }
  uint64_t free_bytes() const;  // now
  // What is enqueued there comes behind all that was gathered.
  CUstream_st* stream() {
    EnqueueGathered();
    return stream_;
  }
  void EnqueueGathered() {
    if (gathered_ != nullptr) std::exchange(gathered_, nullptr)->Enqueue();
  }
  // Enqueued before anything else is, or is waited for. Borrowed, until then; there is no other.
  void SetGathered(GatheredOperations* gathered) { gathered_ = gathered; }
  bool gathers() const { return gathered_ != nullptr; }
  // kScratchBytes for one operation, contents undefined between operations.
  std::byte* scratch() const { return scratch_; }
  static constexpr int64_t kScratchBytes = 256 << 20;
  // Counts the blocks of one kernel; 0 between kernels.
  unsigned* arrived() const { return arrived_; }

  // Memory of the device, undefined, or whole pages of the host's, page-locked and zero-filled.
  // kResourceExhausted names the numbers.
  Result<std::byte*> Allocate(uint64_t bytes);
  Result<std::byte*> AllocatePinned(uint64_t bytes);
  void Free(std::byte* memory);
  void FreePinned(std::byte* memory, uint64_t bytes);

  // Enqueued. Memory of the host is page-locked, and neither changes nor is read until Wait.
  void CopyToDevice(void* to, const void* from, uint64_t bytes);
  void CopyToHost(void* to, const void* from, uint64_t bytes);
  void Zero(void* memory, uint64_t bytes);
  // From any memory of the host, which may change when this returns; for weights, at start.
  void Upload(void* to, const void* from, uint64_t bytes);
  // Until all that was enqueued has been done.
  void Wait();

 private:
  CudaDevice() = default;
  static Result<CudaDevice*> Open();

  std::string name_;
  int capability_ = 0;
  int multiprocessors_ = 0;
  int block_shared_bytes_ = 0;
  int multiprocessor_shared_bytes_ = 0;
  uint64_t memory_bytes_ = 0;
  CUstream_st* stream_ = nullptr;
  GatheredOperations* gathered_ = nullptr;
  std::byte* scratch_ = nullptr;
  unsigned* arrived_ = nullptr;
};

}  // namespace kvcake
