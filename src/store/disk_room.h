// Who makes room in a store directory: what is too much, or too old, is removed.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_set>

#include "base/mutex.h"
#include "store/disk_context.h"
#include "store/disk_scan.h"
#include "store/fault_log.h"
#include "store/tier.h"

namespace kvcake {

// Keeps the whole directory, all roots together, to its capacity. One process evicts at a time, the
// holder of the lock file; in this one, one thread at a time makes room or scans, and the others
// wait for it. Thread-safe; all but AddStats may block.
class DiskRoom {
 public:
  explicit DiskRoom(DiskContext& context) : context_(context), scan_(context) {}

  // Looks at every file, as nobody has yet.
  void ScanFirst() EXCLUDES(mutex_);
  // Scans where other processes have changed something.
  void Refresh() EXCLUDES(mutex_);

  // Evicts until `bytes` more of this owner's fit: its own beyond its quota, then of owners that
  // are over theirs, then, unless it is over its own, what was used longest ago. While another
  // process evicts, its work is ours too: the directory may then exceed its capacity by the writes
  // in flight, and no more. kResourceExhausted, naming the reason.
  Status MakeRoom(uint64_t bytes, OwnerId owner = kNobody) EXCLUDES(mutex_);
  // Evicts the owner's own chunks, the one used longest ago first, while it is over its quota. What
  // is pinned or cannot be removed stays, and all while another process evicts.
  void KeepToQuota(OwnerId owner) EXCLUDES(mutex_);
  // Evicts that many bytes as MakeRoom does, however far below its capacity the directory is: the
  // file system is full. kResourceExhausted where nothing can be evicted, and for a while after
  // NoteStillFull.
  Status FreeSpace(uint64_t bytes) EXCLUDES(mutex_);
  // Notes that what FreeSpace evicted was of no use: others fill the file system.
  void NoteStillFull() EXCLUDES(mutex_);
  // Evicts down to the quotas and the capacity, where there is more.
  void Shrink() EXCLUDES(mutex_);
  bool IsOverfull() const;  // or an owner is over its quota
  // Removes what nobody has used for too long, unless another process is evicting.
  void Expire() EXCLUDES(mutex_);
  // Removes one chunk, pinned or not; that it is not there is ok.
  Status Evict(const ChunkKey& key);

  // Adds what was evicted, and what could not be.
  void AddStats(TierStats& stats) const;

 private:
  enum class Eviction { kDone, kPinned, kFailed };
  Result<std::unique_ptr<FileLock>> LockToEvict(bool patient) REQUIRES(mutex_);
  using Stuck = std::unordered_set<ChunkId>;  // what was to go and could not
  // As KeepToQuota, for `bytes` more.
  void KeepToQuota(OwnerId owner, uint64_t bytes) REQUIRES(mutex_);
  // What goes first to make room for `bytes` of the owner's; nothing where it has its quota, and
  // only what others may keep could go.
  std::optional<CatalogueEntry> FirstToGo(OwnerId owner, uint64_t bytes, const Stuck& stuck) const
      REQUIRES(mutex_);
  Eviction EvictColdest(const CatalogueEntry& coldest) REQUIRES(mutex_);
  // Evicts what `next` returns, one after another, while `full` returns true.
  template <typename Full, typename Next>
  Status EvictWhile(Full full, Next next) REQUIRES(mutex_);

  DiskContext& context_;
  FaultLog faults_{"removing files to make room"};
  std::atomic<uint64_t> evicted_{0};
  std::atomic<uint64_t> evicted_bytes_{0};  // to make room
  std::atomic<uint64_t> evictions_failed_{0};

  Mutex mutex_;
  DiskScan scan_ GUARDED_BY(mutex_);
  TimePoint free_space_again_ GUARDED_BY(mutex_){};  // before that, FreeSpace evicts nothing
};

}  // namespace kvcake
