// Which chunks a store elsewhere is removing, as what it holds of them turned out to be bad. What
// is put meanwhile waits: it would find the bad one there, or go with it.
#pragma once

#include <functional>
#include <unordered_map>
#include <vector>

#include "kv/chunk_key.h"

namespace kvcake {

// The store's thread's.
class Discards {
 public:
  // Whether nobody is removing it yet: the caller is then, until End.
  bool Begin(const ChunkKey& key) { return waiting_.try_emplace(key).second; }
  // Calls what has waited.
  void End(const ChunkKey& key);
  // Calls `then` once nobody is removing the key, within the call where nobody is now.
  void After(const ChunkKey& key, std::function<void()> then);

 private:
  std::unordered_map<ChunkKey, std::vector<std::function<void()>>> waiting_;
};

}  // namespace kvcake
