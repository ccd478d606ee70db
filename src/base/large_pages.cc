#include "base/large_pages.h"

#include <sys/mman.h>

#include <cstdlib>

namespace kvcake {

std::byte* AllocateLargePages(uint64_t bytes) {
  const uint64_t size = RoundUpToLargePages(bytes);
  void* const memory = aligned_alloc(kLargePageBytes, size);
  if (memory != nullptr) madvise(memory, size, MADV_HUGEPAGE);
  return static_cast<std::byte*>(memory);
}

}  // namespace kvcake
