#include "ops/buffer.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "base/check.h"
#include "ops/cuda_device.h"

namespace kvcake {
namespace {

std::byte* Map(uint64_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  CHECK(memory != MAP_FAILED);
  madvise(memory, bytes, MADV_HUGEPAGE);
  return static_cast<std::byte*>(memory);
}

}  // namespace

Buffer::Buffer(uint64_t bytes, Memory memory) : size_(bytes), memory_(memory) {
  if (bytes == 0) return;
  if (memory == Memory::kHost) {
    data_ = Map(bytes);
    return;
  }
  CudaDevice& device = *CudaDevice::Get().value();
  const bool pinned = memory == Memory::kPinned;
  const auto got = pinned ? device.AllocatePinned(bytes) : device.Allocate(bytes);
  if (!got) std::fprintf(stderr, "kvcake: %s\n", got.error().message.c_str());
  CHECK(got);
  data_ = *got;
  if (!pinned) device.Zero(data_, bytes);
}

Buffer::~Buffer() {
  if (data_ == nullptr) return;
  switch (memory_) {
    case Memory::kHost:
      munmap(data_, size_);
      return;
    case Memory::kPinned:
      (*CudaDevice::Get())->FreePinned(data_, size_);
      return;
    case Memory::kDevice:
      (*CudaDevice::Get())->Free(data_);
      return;
  }
}

Buffer::Buffer(Buffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      memory_(other.memory_) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(memory_, other.memory_);
  return *this;
}

void WriteTo(Memory memory, std::byte* to, std::span<const std::byte> bytes) {
  if (memory == Memory::kDevice) {
    CudaDevice::Get().value()->Upload(to, bytes.data(), bytes.size());
  } else {
    std::ranges::copy(bytes, to);
  }
}

}  // namespace kvcake
