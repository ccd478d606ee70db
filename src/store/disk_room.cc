#include "store/disk_room.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "base/cpu.h"

namespace kvcake {
namespace {

constexpr int kFirstScanThreadsMax = 4;
// The writes of other processes that may be under way while this one may not evict.
constexpr uint64_t kWritesInFlight = 8;
// Where as many cannot be removed, the next will not be either.
constexpr int kEvictionFailuresMax = 64;
// Longer than a burst of writes, shorter than people take to delete something.
constexpr Seconds kStillFullPause{10};
constexpr int kLockTries = 100;
constexpr std::chrono::milliseconds kLockPause{5};

bool IsNotFound(const Error& error) { return error.code == ErrorCode::kNotFound; }

}  // namespace

void DiskRoom::ScanFirst() {
  MutexLock lock(mutex_);
  scan_.RunFirst(std::min(UsableCores(), kFirstScanThreadsMax));  // nobody computes yet
}

void DiskRoom::Refresh() {
  MutexLock lock(mutex_);
  scan_.RunIfChanged();
}

// The lock of who evicts. Another process may have it, which will not be for long: waits a little
// when `patient`. Null when it still has it, or where the whole directory has gone.
Result<std::unique_ptr<FileLock>> DiskRoom::LockToEvict(bool patient) {
  for (int tries = 0;; ++tries) {
    auto lock = context_.fs.TryLock(context_.store.LockPath());
    if (!lock && IsNotFound(lock.error())) {
      scan_.Run();
      return nullptr;
    }
    if (!lock || *lock || !patient || tries >= kLockTries) return lock;
    std::this_thread::sleep_for(kLockPause);
  }
}

Status DiskRoom::MakeRoom(uint64_t bytes, OwnerId owner) {
  MutexLock lock(mutex_);
  const DiskTierOptions& options = context_.options;
  const Catalogue& files = context_.index.files();
  if (Clock::Real().Now() - scan_.began() > options.rescan_interval) scan_.Run();
  KeepToQuota(owner, bytes);
  const auto full = [&] { return files.bytes() + bytes > options.capacity_bytes; };
  if (!full()) return {};
  const auto far_over = [&] {
    return files.bytes() > options.capacity_bytes + kWritesInFlight * bytes;
  };
  ASSIGN_OR_RETURN(const auto store_lock, LockToEvict(/*patient=*/bytes > 0 && far_over()));
  if (!store_lock) {
    if (bytes == 0 || !far_over()) return {};
    return Fail(ErrorCode::kResourceExhausted,
                "{} is full, and another process keeps the lock to make room: {}",
                context_.store.Base(), context_.store.LockPath());
  }
  RETURN_IF_ERROR(EvictWhile(full, [&](const Stuck& stuck) {
    mutex_.AssertHeld();
    return FirstToGo(owner, bytes, stuck);
  }));
  if (!full() || !files.IsOverQuota(owner, bytes)) return {};
  return Fail(ErrorCode::kResourceExhausted,
              "{} is full, and what a tenant has of it is as much as --tenant-store-bytes and in "
              "use, or cannot be removed",
              context_.store.Base());
}

void DiskRoom::KeepToQuota(OwnerId owner) {
  MutexLock lock(mutex_);
  KeepToQuota(owner, 0);
}

void DiskRoom::KeepToQuota(OwnerId owner, uint64_t bytes) {
  const Catalogue& files = context_.index.files();
  const auto over = [&] { return files.IsOverQuota(owner, bytes); };
  if (!over()) return;
  const auto store_lock = LockToEvict(/*patient=*/false);
  if (!store_lock || !*store_lock) return;
  // What stays for now goes with a later write, or by the upkeep.
  (void)EvictWhile(over, [&](const Stuck&) { return files.ColdestOf(owner); });
}

Status DiskRoom::FreeSpace(uint64_t bytes) {
  MutexLock lock(mutex_);
  if (Clock::Real().Now() < free_space_again_) {
    return Fail(ErrorCode::kResourceExhausted, "eviction made no room in {} a moment ago",
                context_.store.Base());
  }
  ASSIGN_OR_RETURN(const auto store_lock, LockToEvict(/*patient=*/true));
  if (!store_lock) {
    return Fail(ErrorCode::kResourceExhausted, "another process keeps the lock to make room: {}",
                context_.store.LockPath());
  }
  const uint64_t enough = evicted_bytes_ + bytes;
  const auto full = [&] { return evicted_bytes_ < enough; };
  RETURN_IF_ERROR(EvictWhile(full, [&](const Stuck& stuck) {
    mutex_.AssertHeld();
    return FirstToGo(kNobody, 0, stuck);
  }));
  if (!full()) return {};
  return Fail(ErrorCode::kResourceExhausted, "nothing is left to evict in {}",
              context_.store.Base());
}

void DiskRoom::NoteStillFull() {
  MutexLock lock(mutex_);
  free_space_again_ = Clock::Real().Now() + kStillFullPause;
}

std::optional<CatalogueEntry> DiskRoom::FirstToGo(OwnerId owner, uint64_t bytes,
                                                  const Stuck& stuck) const {
  const Catalogue& files = context_.index.files();
  std::vector<OwnerId> owners = files.OverQuota();
  // Some of it is in use, or writes have ended since it was kept to its quota.
  const bool over_quota = files.IsOverQuota(owner, bytes);
  if (over_quota) owners.insert(owners.begin(), owner);
  for (const OwnerId over : owners) {
    const auto coldest = files.ColdestOf(over);
    if (coldest && !stuck.contains(coldest->id)) return coldest;
  }
  return over_quota ? std::nullopt : files.Coldest();
}

template <typename Full, typename Next>
Status DiskRoom::EvictWhile(Full full, Next next) {
  Stuck stuck;
  int failures = 0;
  while (full()) {
    const std::optional<CatalogueEntry> coldest = next(stuck);
    if (!coldest) break;
    if (stuck.contains(coldest->id) || failures == kEvictionFailuresMax) {
      return Fail(
          ErrorCode::kResourceExhausted,
          "{} files in {} are in use or cannot be removed to make room for new ones; delete files "
          "or raise --disk-capacity",
          stuck.size(), context_.store.Base());
    }
    const Eviction eviction = EvictColdest(*coldest);
    if (eviction != Eviction::kDone) stuck.insert(coldest->id);
    if (eviction == Eviction::kFailed) ++failures;
  }
  return {};
}

// One step towards room. What is pinned or cannot be removed then waits behind all others, still
// counted.
DiskRoom::Eviction DiskRoom::EvictColdest(const CatalogueEntry& coldest) {
  Catalogue& files = context_.index.files();
  if (context_.index.IsPinned(coldest.id)) {
    files.Postpone(coldest.id);
    return Eviction::kPinned;
  }
  const std::string path = context_.store.ChunkPath(coldest.id);
  const auto info = context_.fs.Stat(path);
  if (info && ClampMtime(info->mtime_s) > coldest.mtime_s) {
    // Another process has used it: it is not the coldest after all.
    files.Add({coldest.id, info->bytes, info->mtime_s});
    return Eviction::kDone;
  }
  const auto removed = context_.fs.Remove(path);
  if (!removed && !IsNotFound(removed.error())) {
    faults_.Failed(removed.error());
    files.Postpone(coldest.id);
    ++evictions_failed_;
    return Eviction::kFailed;
  }
  files.Remove(coldest.id);
  if (removed) {
    faults_.Succeeded();
    ++evicted_;
    evicted_bytes_ += coldest.bytes;
  }
  return Eviction::kDone;
}

bool DiskRoom::IsOverfull() const {
  const Catalogue& files = context_.index.files();
  return files.bytes() > context_.options.capacity_bytes || !files.OverQuota().empty();
}

void DiskRoom::Shrink() {
  if (!IsOverfull()) return;
  for (const OwnerId owner : context_.index.files().OverQuota()) KeepToQuota(owner);
  (void)MakeRoom(0);
}

void DiskRoom::Expire() {
  MutexLock lock(mutex_);
  const DiskIndex& index = context_.index;
  const Catalogue& files = context_.index.files();
  auto coldest = files.Coldest();
  if (!coldest || !index.IsExpired(coldest->mtime_s)) return;
  const auto store_lock = context_.fs.TryLock(context_.store.LockPath());
  if (!store_lock || !*store_lock) return;
  while (coldest && index.IsExpired(coldest->mtime_s) &&
         EvictColdest(*coldest) == Eviction::kDone) {
    coldest = files.Coldest();
  }
}

Status DiskRoom::Evict(const ChunkKey& key) {
  const auto removed = context_.fs.Remove(context_.PathOf(key));
  if (!removed && !IsNotFound(removed.error())) return removed;
  context_.index.Remove(key);
  if (removed) ++evicted_;
  return {};
}

void DiskRoom::AddStats(TierStats& stats) const {
  stats.evicted += evicted_;
  stats.evictions_failed += evictions_failed_;
}

}  // namespace kvcake
