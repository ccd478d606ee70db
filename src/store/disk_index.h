// What a disk tier knows of its directory without looking: which chunks are there, which are not,
// which cannot be read, and which are pinned.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "io/file_system.h"
#include "store/catalogue.h"
#include "store/disk_tier_options.h"
#include "store/pins.h"

namespace kvcake {

// Thread-safe. Only touches memory: every call returns at once, whatever the device does. Keys are
// those of the tier's own root.
class DiskIndex {
 public:
  explicit DiskIndex(const DiskTierOptions& options);

  // The files of every root, for who scans the directory and makes room in it.
  Catalogue& files() { return files_; }
  const Catalogue& files() const { return files_; }
  Pins& pins() { return pins_; }
  // Whether it may not be removed to make room.
  bool IsPinned(const ChunkId& id) const;
  // Whether a file that was last used then has outlived its time.
  bool IsExpired(int64_t mtime_s) const;

  bool Contains(const ChunkKey& key) const { return files_.Contains({root_, key}); }
  std::vector<bool> Contains(std::span<const ChunkKey> keys) const;
  // Its files and their bytes.
  std::pair<uint64_t, uint64_t> Totals() const { return files_.Totals(root_); }
  // A whole file of this name is there; its owner counts where owners have quotas.
  void Add(const ChunkKey& key, const FileInfo& info, OwnerId owner = kNobody);
  // This process has just written one: it may be asked for and read.
  void AddWritten(const ChunkKey& key, uint64_t bytes, OwnerId owner = kNobody) EXCLUDES(mutex_);
  // Marks a use; true when the file's mtime should be set to now_s, as other processes see no other
  // sign of it.
  bool Use(const ChunkKey& key, int64_t now_s);
  void Remove(const ChunkKey& key) { files_.Remove({root_, key}); }

  // Notes that it is not there, or not to be had: it need not be looked for until missing_ttl is
  // over. Forget also removes it.
  void NoteMissing(const ChunkKey& key) EXCLUDES(mutex_);
  void Forget(const ChunkKey& key) EXCLUDES(mutex_);
  bool IsMissing(const ChunkKey& key) const EXCLUDES(mutex_);
  // Notes that it cannot be read: it is written anew, whatever has its name.
  void NoteUnreadable(const ChunkKey& key) EXCLUDES(mutex_);
  // Notes that it has been read after all.
  void NoteReadable(const ChunkKey& key) EXCLUDES(mutex_);
  bool IsUnreadable(const ChunkKey& key) const EXCLUDES(mutex_);
  // Notes that a bad file keeps its name: it would be as bad the next time. A new one may take its
  // place, else it is left alone for a while.
  void NoteStuck(const ChunkKey& key) EXCLUDES(mutex_);

 private:
  void NoteMissingFor(const ChunkKey& key, Seconds duration) EXCLUDES(mutex_);

  const ChunkKey root_;
  const Seconds missing_ttl_;
  const int64_t time_to_live_s_;
  const int64_t touch_after_s_;

  // Self-synchronised.
  Catalogue files_;
  Pins pins_;

  mutable Mutex mutex_;
  std::unordered_map<ChunkKey, TimePoint> missing_ GUARDED_BY(mutex_);  // until then
  std::unordered_set<ChunkKey> unreadable_ GUARDED_BY(mutex_);
};

}  // namespace kvcake
