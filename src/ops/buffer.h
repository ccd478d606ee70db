// Memory for weights and scratch: page-aligned, zero-filled, committed when touched, and backed by
// huge pages where the system has them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvcake {

// Move-only. Ends the process when the system refuses the memory: sizes are decided at start.
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(uint64_t bytes);
  ~Buffer();
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;

  std::byte* data() const { return data_; }
  uint64_t size() const { return size_; }
  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  std::byte* data_ = nullptr;
  uint64_t size_ = 0;
};

}  // namespace kvcake
