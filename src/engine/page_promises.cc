#include "engine/page_promises.h"

#include <algorithm>

#include "base/check.h"

namespace kvcake {

uint64_t PagePromises::NewOf(std::span<const ChunkKey> chunks) const {
  return std::count_if(chunks.begin(), chunks.end(),
                       [this](const ChunkKey& key) { return !chunks_.contains(key); });
}

void PagePromises::Add(std::span<const ChunkKey> chunks, uint64_t own) {
  for (const ChunkKey& key : chunks) ++chunks_[key];
  own_ += own;
}

void PagePromises::Remove(std::span<const ChunkKey> chunks, uint64_t own) {
  for (const ChunkKey& key : chunks) {
    const auto it = chunks_.find(key);
    CHECK(it != chunks_.end());
    if (--it->second == 0) chunks_.erase(it);
  }
  CHECK(own <= own_);
  own_ -= own;
}

}  // namespace kvcake
