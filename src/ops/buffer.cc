#include "ops/buffer.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "ops/cuda_device.h"

namespace kvcake {
namespace {

Result<std::byte*> Map(uint64_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    return Fail(ErrorCode::kResourceExhausted, "cannot map {} bytes of memory: {}", bytes,
                std::strerror(errno));
  }
  madvise(memory, bytes, MADV_HUGEPAGE);
  return static_cast<std::byte*>(memory);
}

}  // namespace

Result<Buffer> Buffer::Create(uint64_t bytes, Memory memory) {
  Buffer buffer;
  if (bytes == 0) return buffer;
  if (memory == Memory::kHost) {
    ASSIGN_OR_RETURN(buffer.data_, Map(bytes));
  } else {
    ASSIGN_OR_RETURN(CudaDevice* const device, CudaDevice::Get());
    const bool pinned = memory == Memory::kPinned;
    ASSIGN_OR_RETURN(buffer.data_,
                     pinned ? device->AllocatePinned(bytes) : device->Allocate(bytes));
    if (!pinned) device->Zero(buffer.data_, bytes);
  }
  buffer.size_ = bytes;
  buffer.memory_ = memory;
  return buffer;
}

Buffer::Buffer(uint64_t bytes, Memory memory) {
  Result<Buffer> created = Create(bytes, memory);
  if (!created) {
    std::fprintf(stderr, "kvcake: %s\n", created.error().message.c_str());
    std::_Exit(1);  // other threads may use what exit() destroys
  }
  *this = std::move(*created);
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

Buffer CopyOf(Memory memory, std::span<const std::byte> bytes) {
  Buffer buffer(bytes.size(), memory);
  WriteTo(memory, buffer.data(), bytes);
  return buffer;
}

}  // namespace kvcake
