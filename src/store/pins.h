// How often each chunk is pinned. Thread-safe.
#pragma once

#include <span>
#include <unordered_map>

#include "base/mutex.h"
#include "kv/chunk_key.h"

namespace kvcake {

class Pins {
 public:
  void Add(std::span<const ChunkKey> keys) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    for (const ChunkKey& key : keys) ++counts_[key];
  }
  void Remove(std::span<const ChunkKey> keys) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    for (const ChunkKey& key : keys) {
      const auto it = counts_.find(key);
      if (it != counts_.end() && --it->second == 0) counts_.erase(it);
    }
  }
  bool Contains(const ChunkKey& key) const EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return counts_.contains(key);
  }
  size_t size() const EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return counts_.size();
  }

 private:
  mutable Mutex mutex_;
  std::unordered_map<ChunkKey, int> counts_ GUARDED_BY(mutex_);  // none is 0
};

}  // namespace kvcake
