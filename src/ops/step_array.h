// Values that the host writes for one step and kernels read, and those that kernels write and the
// host reads.
#pragma once

#include <span>

#include "base/check.h"
#include "ops/buffer.h"
#include "ops/compute.h"
#include "ops/cuda_device.h"

namespace kvcake {

// Holds up to `size` values. On the CPU the host's are the ones that kernels read; else each Commit
// enqueues a copy, and the host's may change again after Compute::Wait.
template <typename T>
class StepArray {
 public:
  StepArray() = default;
  StepArray(const Compute& compute, int64_t size)
      : host_(size * sizeof(T), compute.cuda() != nullptr ? Memory::kPinned : Memory::kHost),
        device_(compute.cuda() != nullptr ? size * sizeof(T) : 0, Memory::kDevice) {}

  std::span<T> host() const { return {host_.as<T>(), host_.size() / sizeof(T)}; }
  // The first `count` values, where kernels read them.
  std::span<const T> Commit(const Compute& compute, int64_t count) const {
    CHECK(count <= std::ssize(host()));
    if (compute.cuda() == nullptr) return host().first(count);
    compute.cuda()->CopyToDevice(device_.data(), host_.data(), count * sizeof(T));
    return {device_.as<T>(), static_cast<size_t>(count)};
  }

 private:
  Buffer host_;
  Buffer device_;
};

// Holds up to `size` values. On the CPU the kernels' are the host's; else each Fetch enqueues a
// copy.
template <typename T>
class StepResult {
 public:
  StepResult() = default;
  StepResult(const Compute& compute, int64_t size)
      : kernels_(size * sizeof(T), MemoryOf(compute.path())),
        pinned_(compute.cuda() != nullptr ? size * sizeof(T) : 0, Memory::kPinned) {}

  T* kernels() const { return kernels_.as<T>(); }
  // The first `count` values, the host's after Compute::Wait and until the next Fetch.
  std::span<const T> Fetch(const Compute& compute, int64_t count) const {
    CHECK(count * sizeof(T) <= kernels_.size());
    const auto values = static_cast<size_t>(count);
    if (compute.cuda() == nullptr) return {kernels(), values};
    if (count > 0) compute.cuda()->CopyToHost(pinned_.data(), kernels(), count * sizeof(T));
    return {pinned_.as<T>(), values};
  }

 private:
  Buffer kernels_;
  Buffer pinned_;
};

}  // namespace kvcake
