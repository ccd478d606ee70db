// Which keys a tier elsewhere is known to hold, as far as this process has heard.
#pragma once

#include <cstddef>
#include <list>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/mutex.h"
#include "kv/chunk_key.h"

namespace kvcake {

// A hint: what others remove is found out when it is read. Forgets what was used longest ago beyond
// its bound, some 130 bytes a key. Thread-safe.
class KnownKeys {
 public:
  explicit KnownKeys(size_t keys_max) : keys_max_(keys_max) {}

  // One flag per key.
  std::vector<bool> Contains(std::span<const ChunkKey> keys) const EXCLUDES(mutex_);
  // It is held, and used now.
  void Add(const ChunkKey& key) EXCLUDES(mutex_);
  // Whether it was held.
  bool Remove(const ChunkKey& key) EXCLUDES(mutex_);
  void Clear() EXCLUDES(mutex_);
  size_t size() const EXCLUDES(mutex_);

 private:
  const size_t keys_max_;
  mutable Mutex mutex_;
  std::list<ChunkKey> used_ GUARDED_BY(mutex_);  // the longest ago first
  std::unordered_map<ChunkKey, std::list<ChunkKey>::iterator> keys_ GUARDED_BY(mutex_);
};

}  // namespace kvcake
