#include "store/discards.h"

#include <utility>

namespace kvcake {

void Discards::End(const ChunkKey& key) {
  const auto waiting = std::move(waiting_.extract(key).mapped());
  for (const auto& then : waiting) then();
}

void Discards::After(const ChunkKey& key, std::function<void()> then) {
  const auto at = waiting_.find(key);
  if (at == waiting_.end()) return then();
  at->second.push_back(std::move(then));
}

}  // namespace kvcake
