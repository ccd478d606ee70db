// The pages that sequences which run may count on. A chunk that several of them hold in common is
// one page, and counts once.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>

#include "kv/chunk_key.h"

namespace kvcake {

// Unsynchronised.
class PagePromises {
 public:
  // All that is promised.
  uint64_t pages() const { return chunks_.size() + own_; }
  // How many pages promising these chunks would add.
  uint64_t NewOf(std::span<const ChunkKey> chunks) const;
  // Chunks that may be shared, and pages of the sequence's own.
  void Add(std::span<const ChunkKey> chunks, uint64_t own);
  // What was added before.
  void Remove(std::span<const ChunkKey> chunks, uint64_t own);

 private:
  std::unordered_map<ChunkKey, uint32_t> chunks_;  // by how many sequences
  uint64_t own_ = 0;
};

}  // namespace kvcake
