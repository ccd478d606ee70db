// Memory for weights, scratch and what is staged.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/status.h"

namespace kvcake {

// kHost: page-aligned, committed when touched, backed by huge pages where the system has them.
// kPinned, of the host too: page-locked, for copies to and from the CUDA device. kDevice: its own.
enum class Memory { kHost, kPinned, kDevice };

// Move-only, and zero-filled.
class Buffer {
 public:
  Buffer() = default;
  // kResourceExhausted names the numbers when the system refuses the memory.
  static Result<Buffer> Create(uint64_t bytes, Memory memory);
  // Ends the process then, with that error and exit code 1: for sizes that are decided at start.
  explicit Buffer(uint64_t bytes, Memory memory = Memory::kHost);
  ~Buffer();
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;

  // Not the host's to touch where it is the device's.
  std::byte* data() const { return data_; }
  uint64_t size() const { return size_; }
  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  std::byte* data_ = nullptr;
  uint64_t size_ = 0;
  Memory memory_ = Memory::kHost;
};

// Copies bytes of any memory of the host to memory of that kind, where they are when it returns.
void WriteTo(Memory memory, std::byte* to, std::span<const std::byte> bytes);

// A buffer with a copy of them.
Buffer CopyOf(Memory memory, std::span<const std::byte> bytes);

}  // namespace kvcake
