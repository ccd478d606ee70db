// What files a store directory holds, as far as this process knows: of every root, by key, in the
// order of last use. A million files take less than 80 MB, and 24 MB more where owners have quotas.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "kv/chunk_key.h"
#include "store/owner_lists.h"
#include "store/store_dir.h"

namespace kvcake {

struct CatalogueEntry {
  ChunkId id;
  uint64_t bytes = 0;
  int64_t mtime_s = 0;      // the file's: when it was last used, coarsely; within [0, 2^32)
  OwnerId owner = kNobody;  // known where owners have quotas
};

// A file's time as an entry has it, which may be a stranger's.
inline int64_t ClampMtime(int64_t mtime_s) { return std::clamp<int64_t>(mtime_s, 0, UINT32_MAX); }

// Whether a clock that was wrong has given a file its time: right ones differ by less. One that is
// earlier than kvcake is itself wrong, as of a machine that starts and has not asked the network.
inline bool IsAhead(int64_t mtime_s, int64_t now_s) {
  constexpr int64_t kBegan = 1735689600;  // 2025
  return now_s >= kBegan && mtime_s > now_s + 60;
}

// Thread-safe.
class Catalogue {
 public:
  // The most bytes of one owner, of every root; 0: no quotas.
  explicit Catalogue(uint64_t owner_quota_bytes = 0);

  bool Contains(const ChunkId& id) const EXCLUDES(mutex_);
  // One flag per key.
  std::vector<bool> Contains(const ChunkKey& root, std::span<const ChunkKey> keys) const
      EXCLUDES(mutex_);
  // Adds the file, or renews what is known about it, its owner where one is given; a later mtime
  // counts as a use.
  void Add(const CatalogueEntry& entry) EXCLUDES(mutex_);
  // Marks a use by this process. True when the file's mtime is older than touch_after_s, or ahead,
  // and should be renewed; it is taken to be now_s from then on.
  bool Use(const ChunkId& id, int64_t now_s, int64_t touch_after_s) EXCLUDES(mutex_);
  // False when it was not known.
  bool Remove(const ChunkId& id) EXCLUDES(mutex_);
  // Puts the file behind all others: it cannot be evicted now.
  void Postpone(const ChunkId& id) EXCLUDES(mutex_);

  // A scan of the directory: Begin, Add for each file, then End, which forgets what has not been
  // added since Begin, by the scan or otherwise, unless the scan was incomplete, and orders what
  // was new by its mtime. One at a time. End looks at a batch of files at a time and lets the
  // others in between: `between` is called without the mutex. Returns what was removed while the
  // scan ran and is there again: the scan may have seen it before.
  void BeginScan() EXCLUDES(mutex_);
  std::vector<ChunkId> EndScan(bool complete, const std::function<void()>& between = LetOthersIn)
      EXCLUDES(mutex_);
  static constexpr size_t kScanBatch = 4096;  // files, a fraction of a millisecond

  // The file used longest ago.
  std::optional<CatalogueEntry> Coldest() const EXCLUDES(mutex_);
  // The owner's.
  std::optional<CatalogueEntry> ColdestOf(OwnerId owner) const EXCLUDES(mutex_);
  // Any file; another for another `number`, where there are several.
  std::optional<CatalogueEntry> Sample(uint64_t number) const EXCLUDES(mutex_);
  uint64_t bytes() const EXCLUDES(mutex_);  // of every root
  // Files and bytes of one root.
  std::pair<uint64_t, uint64_t> Totals(const ChunkKey& root) const EXCLUDES(mutex_);
  // Whether the owner is over its quota, or would be with so many bytes more.
  bool IsOverQuota(OwnerId owner, uint64_t more) const EXCLUDES(mutex_);
  // Owners that are over it now.
  std::vector<OwnerId> OverQuota() const EXCLUDES(mutex_);
  // Bytes by owner; those who have none are forgotten.
  std::vector<OwnedBytes> Owners() const EXCLUDES(mutex_);

 private:
  using SlotId = OwnerLists::Slot;
  static constexpr SlotId kNone = OwnerLists::kNone;
  // 64 bytes, and 6 to 11 in index_: that is what a catalogued chunk costs.
  struct Slot {
    ChunkKey key = {};
    uint64_t bytes = 0;
    uint32_t mtime_s = 0;
    uint32_t root = 0;                      // in roots_; kNone: free
    uint32_t scan = 0;                      // the last one begun when it was added
    SlotId colder = kNone, warmer = kNone;  // the list of last use; `warmer` links free slots
  };
  struct Root {
    ChunkKey key = {};
    uint64_t files = 0;
    uint64_t bytes = 0;
  };

  // A mutex that is locked again at once is seldom had by those who wait for it.
  static void LetOthersIn();
  // Calls visit(i) for each i below n, a batch at a time.
  template <typename Visit>
  void InBatches(size_t n, const std::function<void()>& between, Visit visit) EXCLUDES(mutex_);
  CatalogueEntry EntryOf(SlotId slot) const REQUIRES(mutex_);
  std::optional<uint32_t> FindRoot(const ChunkKey& root) const REQUIRES(mutex_);
  size_t HomeOf(const ChunkKey& key) const REQUIRES(mutex_);
  // Where index_ has the slot, or where it would go.
  size_t Find(uint32_t root, const ChunkKey& key) const REQUIRES(mutex_);
  std::optional<SlotId> Find(const ChunkId& id) const REQUIRES(mutex_);
  SlotId Insert(const ChunkId& id) REQUIRES(mutex_);
  void Erase(SlotId slot) REQUIRES(mutex_);
  void GrowIndex() REQUIRES(mutex_);
  void Unlink(SlotId slot) REQUIRES(mutex_);
  void LinkWarmest(SlotId slot) REQUIRES(mutex_);

  mutable Mutex mutex_;
  std::deque<Slot> slots_ GUARDED_BY(mutex_);  // never shrinks
  // Open addressing with linear probing; at most three quarters full.
  std::vector<SlotId> index_ GUARDED_BY(mutex_);
  std::vector<Root> roots_ GUARDED_BY(mutex_);  // never forgotten: there are fewer than chunks
  std::unordered_map<ChunkKey, uint32_t> root_index_ GUARDED_BY(mutex_);  // in roots_
  OwnerLists owners_ GUARDED_BY(mutex_);                                  // of slots_
  // What was new to the scan that is going on, and what went meanwhile.
  std::vector<SlotId> scanned_ GUARDED_BY(mutex_);
  std::vector<ChunkId> removed_ GUARDED_BY(mutex_);
  SlotId free_ GUARDED_BY(mutex_) = kNone;
  SlotId coldest_ GUARDED_BY(mutex_) = kNone;
  SlotId warmest_ GUARDED_BY(mutex_) = kNone;
  uint64_t files_ GUARDED_BY(mutex_) = 0;
  uint64_t bytes_ GUARDED_BY(mutex_) = 0;
  uint32_t scan_ GUARDED_BY(mutex_) = 0;
  bool scanning_ GUARDED_BY(mutex_) = false;
};

}  // namespace kvcake
