// Memory in large pages where the system has any.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvcake {

inline constexpr uint64_t kLargePageBytes = 2 << 20;

constexpr uint64_t RoundUpToLargePages(uint64_t bytes) {
  return (bytes + kLargePageBytes - 1) / kLargePageBytes * kLargePageBytes;
}

// RoundUpToLargePages(bytes), aligned to a large page, for direct I/O, whose requests small pages
// cut up; free() ends it. Null where there is no memory.
std::byte* AllocateLargePages(uint64_t bytes);

}  // namespace kvcake
