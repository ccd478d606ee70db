#include "lib/open_keys.h"

namespace kvcake {

Status OpenKeys::Add(const ChunkKey& parent, std::span<const ChunkKey> keys) {
  for (size_t i = 0; i < keys.size(); ++i) {
    const ChunkKey& before = i == 0 ? parent : keys[i - 1];
    Place& place = places_.try_emplace(keys[i], Place{i, before, 0}).first->second;
    if (place.position != i || place.parent != before) {
      const size_t other = place.position;
      Remove(keys.first(i));
      return Fail(ErrorCode::kInvalidArgument,
                  "keys[{}] is the key of chunk {} of this request or an open restoration, or "
                  "follows another key there: keys are those of a whole prompt, from its first "
                  "chunk on",
                  i, other);
    }
    ++place.restorations;
  }
  return {};
}

void OpenKeys::Remove(std::span<const ChunkKey> keys) {
  for (const ChunkKey& key : keys) {
    const auto it = places_.find(key);
    if (--it->second.restorations == 0) places_.erase(it);
  }
}

}  // namespace kvcake
