#include "ops/buffer.h"

#include <sys/mman.h>

#include <utility>

#include "base/check.h"

namespace kvcake {

Buffer::Buffer(uint64_t bytes) : size_(bytes) {
  if (bytes == 0) return;
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  CHECK(memory != MAP_FAILED);
  madvise(memory, bytes, MADV_HUGEPAGE);
  data_ = static_cast<std::byte*>(memory);
}

Buffer::~Buffer() {
  if (data_ != nullptr) munmap(data_, size_);
}

Buffer::Buffer(Buffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

}  // namespace kvcake
