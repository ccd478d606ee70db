// Who makes room in a store directory: what is too much, or too old, is removed.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <unordered_set>
#include <utility>

#include "base/mutex.h"
#include "store/disk_context.h"
#include "store/disk_scan.h"
#include "store/disk_space.h"
#include "store/fault_log.h"
#include "store/tier.h"

namespace kvcake {

// Keeps the whole directory, all roots together, to its capacity. One process evicts at a time, the
// holder of the lock file; in this one, one thread at a time. A writer evicts what its own file
// needs; all the rest is upkeep's, which scans without being in a writer's way and evicts in
// batches, between which writers come. Thread-safe; all but AddStats may block.
class DiskRoom {
 public:
  // `between` is called by upkeep, without the mutex, after each batch of files.
  explicit DiskRoom(DiskContext& context, std::function<void()> between = LetWritersIn)
      : context_(context), between_batches_(std::move(between)), scan_(context), space_(context) {}

  // Looks at every file, as nobody has yet.
  void ScanFirst() EXCLUDES(scan_mutex_);
  // Scans where other processes have changed something, or may have.
  void Refresh() EXCLUDES(scan_mutex_);

  // Evicts until `bytes` more of this owner's fit, or, where there is far too much, until twice as
  // many have gone: its own beyond its quota, then of owners that are over theirs, then, unless it
  // is over its own, what was used longest ago. Where the file system has too little free space as
  // many go as come. While another process evicts, its work is ours too: the directory may then
  // exceed its capacity by the writes in flight, and no more. kResourceExhausted, naming the
  // reason.
  Status MakeRoom(uint64_t bytes, OwnerId owner = kNobody) EXCLUDES(mutex_);
  // Evicts the owner's own chunks, the one used longest ago first, while it is over its quota, two
  // at most. What is pinned or cannot be removed stays, and all while another process evicts.
  void KeepToQuota(OwnerId owner) EXCLUDES(mutex_);
  // Evicts that many bytes as MakeRoom does, however far below its capacity the directory is: the
  // file system is full. kResourceExhausted where nothing can be evicted, and for a while after
  // NoteStillFull.
  Status FreeSpace(uint64_t bytes) EXCLUDES(mutex_);
  // Notes that what FreeSpace evicted was of no use: others fill the file system.
  void NoteStillFull() EXCLUDES(mutex_);
  // Notes that a chunk has found its place, after what FreeSpace evicted where it did.
  void NoteWritten(uint64_t bytes, bool after_freeing) EXCLUDES(mutex_);
  // Evicts down to the quotas and the capacity, where there is more, and until the file system has
  // as much free space as it is to keep, where that is of use; unless another process is evicting.
  void Shrink() EXCLUDES(mutex_);
  bool IsOverfull() const;  // or an owner is over its quota
  // Removes what nobody has used for too long, unless another process is evicting.
  void Expire() EXCLUDES(mutex_);
  // Ends what upkeep does, here and from now on, with the file or directory that it is at.
  void StopUpkeep();
  // Removes one chunk, pinned or not; that it is not there is ok.
  Status Evict(const ChunkKey& key);

  // Adds what was evicted, and what could not be.
  void AddStats(TierStats& stats) const;

 private:
  enum class Eviction { kDone, kKept, kPinned, kFailed };
  // What one attempt to make room has come to.
  struct Attempt {
    uint64_t bytes = 0;  // that are not there any more
    std::unordered_set<ChunkId> stuck = {};
    int failures = 0;
  };
  Result<std::unique_ptr<FileLock>> LockToEvict(bool patient) REQUIRES(mutex_);
  // As the public one, for `bytes` more.
  void KeepToQuota(OwnerId owner, uint64_t bytes) REQUIRES(mutex_);
  bool IsOverCapacity() const;
  void KeepSpaceFree() EXCLUDES(mutex_);
  // What goes first to make room for `bytes` of the owner's; nothing where it has its quota, and
  // only what others may keep could go.
  std::optional<CatalogueEntry> FirstToGo(OwnerId owner, uint64_t bytes,
                                          const Attempt& attempt) const REQUIRES(mutex_);
  Eviction EvictColdest(const CatalogueEntry& coldest) REQUIRES(mutex_);
  // Evicts what `next()` returns, one after another, until it is nothing, files_max at most.
  template <typename Next>
  Status EvictWhile(Next next, Attempt& attempt, int files_max) REQUIRES(mutex_);
  // Evicts what `next(attempt)` returns until it is nothing, a batch at a time, unless another
  // process is evicting; calls `after`, without the mutex, with the bytes that each batch removed.
  template <typename Next, typename After>
  void EvictInBatches(Next next, After after) EXCLUDES(mutex_);
  template <typename Next>
  void EvictInBatches(Next next) EXCLUDES(mutex_) {
    EvictInBatches(next, [](uint64_t) {});
  }

  // A mutex that is locked again at once is seldom had by those who wait for it.
  static void LetWritersIn();

  DiskContext& context_;
  const std::function<void()> between_batches_;
  FaultLog faults_{"removing files to make room"};
  std::atomic<uint64_t> evicted_{0};
  std::atomic<uint64_t> evicted_bytes_{0};  // to make room
  std::atomic<uint64_t> evictions_failed_{0};

  std::atomic<bool> written_{false};  // since the last scan that was begun for that
  std::atomic<bool> stop_{false};     // upkeep

  Mutex scan_mutex_;
  DiskScan scan_;  // guarded by scan_mutex_, but for Stop

  DiskSpace space_;

  Mutex mutex_;  // who evicts
  UselessEvictions useless_ GUARDED_BY(mutex_);
};

}  // namespace kvcake
