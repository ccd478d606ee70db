#include "store/known_keys.h"

namespace kvcake {

std::vector<bool> KnownKeys::Contains(std::span<const ChunkKey> keys) const {
  std::vector<bool> known(keys.size());
  MutexLock lock(mutex_);
  for (size_t i = 0; i < keys.size(); ++i) known[i] = keys_.contains(keys[i]);
  return known;
}

void KnownKeys::Add(const ChunkKey& key) {
  MutexLock lock(mutex_);
  if (const auto at = keys_.find(key); at != keys_.end()) {
    used_.splice(used_.end(), used_, at->second);
    return;
  }
  if (keys_max_ == 0) return;
  if (keys_.size() >= keys_max_) {
    keys_.erase(used_.front());
    used_.pop_front();
  }
  keys_.emplace(key, used_.insert(used_.end(), key));
}

bool KnownKeys::Remove(const ChunkKey& key) {
  MutexLock lock(mutex_);
  const auto at = keys_.find(key);
  if (at == keys_.end()) return false;
  used_.erase(at->second);
  keys_.erase(at);
  return true;
}

void KnownKeys::Clear() {
  MutexLock lock(mutex_);
  keys_.clear();
  used_.clear();
}

size_t KnownKeys::size() const {
  MutexLock lock(mutex_);
  return keys_.size();
}

}  // namespace kvcake
