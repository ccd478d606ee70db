// What files a store directory holds, as far as this process knows: of every root, by key, in the
// order of last use.
#pragma once

#include <cstdint>
#include <list>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kv/chunk_key.h"
#include "store/store_dir.h"

namespace kvcake {

struct CatalogueEntry {
  ChunkId id;
  uint64_t bytes = 0;
  int64_t mtime_s = 0;  // the file's: when it was last used, coarsely
};

// Thread-safe.
class Catalogue {
 public:
  bool Contains(const ChunkId& id) const;
  // Adds the file, or renews what is known about it; a later mtime counts as a use.
  void Add(const CatalogueEntry& entry);
  // Marks a use by this process. True when the file's mtime is older than touch_after_s and should
  // be renewed; it is taken to be now_s from then on.
  bool Use(const ChunkId& id, int64_t now_s, int64_t touch_after_s);
  // False when it was not known.
  bool Remove(const ChunkId& id);
  // Makes the catalogue what a scan found: adds, renews, and forgets what the scan did not see,
  // unless it was added since generation() was `scan_started`. A scan that is not complete makes it
  // forget nothing.
  void Replace(const std::vector<CatalogueEntry>& entries, uint64_t scan_started,
               bool complete = true);
  // Puts the file behind all others: it cannot be evicted now.
  void Postpone(const ChunkId& id);
  uint64_t generation() const;  // grows with every Add

  // The file used longest ago.
  std::optional<CatalogueEntry> Coldest() const;
  uint64_t bytes() const;  // of every root
  // Files and bytes of one root.
  std::pair<uint64_t, uint64_t> Totals(const ChunkKey& root) const;

 private:
  struct Slot {
    uint64_t bytes = 0;
    int64_t mtime_s = 0;
    uint64_t generation = 0;
    std::list<ChunkId>::iterator lru;
  };
  struct Total {
    uint64_t files = 0;
    uint64_t bytes = 0;
  };
  void AddLocked(const CatalogueEntry& entry);
  void RemoveLocked(std::unordered_map<ChunkId, Slot>::iterator it);

  mutable std::mutex mutex_;
  // Guarded by mutex_.
  std::unordered_map<ChunkId, Slot> slots_;
  std::list<ChunkId> lru_;  // coldest first
  std::unordered_map<ChunkKey, Total> totals_;
  uint64_t bytes_ = 0;
  uint64_t generation_ = 0;
};

}  // namespace kvcake
