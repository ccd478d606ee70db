#include "store/disk_room.h"

#include <algorithm>
#include <chrono>
#include <climits>
#include <string>
#include <thread>
#include <vector>

#include "base/cpu.h"
#include "store/evict_lock.h"

namespace kvcake {
namespace {

constexpr int kFirstScanThreadsMax = 4;
// The writes of other processes that may be under way while this one may not evict.
constexpr uint64_t kWritesInFlight = 8;
// Where as many cannot be removed, the next will not be either.
constexpr int kEvictionFailuresMax = 64;
// What upkeep evicts before it lets writers in, and for how long.
constexpr int kBatchFiles = 16;
constexpr std::chrono::milliseconds kBatchPause{1};
constexpr int kLockTries = 100;

bool IsNotFound(const Error& error) { return error.code == ErrorCode::kNotFound; }

}  // namespace

void DiskRoom::LetWritersIn() { std::this_thread::sleep_for(kBatchPause); }

void DiskRoom::ScanFirst() {
  space_.Refresh();
  MutexLock lock(scan_mutex_);
  scan_.RunFirst(std::min(UsableCores(), kFirstScanThreadsMax));
}

void DiskRoom::Refresh() {
  MutexLock lock(scan_mutex_);
  if (scan_.IsDue() && written_.exchange(false)) {
    scan_.Run();
  } else {
    scan_.RunIfChanged();
  }
  scan_.Sweep();
}

void DiskRoom::StopUpkeep() {
  stop_ = true;
  scan_.Stop();
}

// The lock of who evicts. Another process may have it, which will not be for long: waits a little
// when `patient`. Null when it still has it. kNotFound where the whole directory has gone.
Result<std::unique_ptr<FileLock>> DiskRoom::LockToEvict(bool patient) {
  const std::string path = context_.store.LockPath();
  return AskForEvictLock(patient ? kLockTries : 0, [&] {
    const Watched watched = context_.health.Watch(OverdueWatch::Kind::kWrite, path);
    return context_.fs.TryLock(path);
  });
}

Status DiskRoom::MakeRoom(uint64_t bytes, OwnerId owner) {
  written_ = true;
  MutexLock lock(mutex_);
  KeepToQuota(owner, bytes);
  const uint64_t capacity = context_.options.capacity_bytes;
  const Catalogue& files = context_.index.files();
  const auto full = [&] { return files.bytes() + bytes > capacity; };
  const uint64_t make_way = std::min(space_.Missing(bytes), bytes);
  if (!full() && make_way == 0) return {};
  const auto far_over = [&] { return files.bytes() > capacity + kWritesInFlight * bytes; };
  const auto store_lock = LockToEvict(/*patient=*/far_over());
  if (!store_lock) {
    // The directory has gone, and all that was in it, as the next scan will tell.
    return IsNotFound(store_lock.error()) ? Status() : tl::unexpected(store_lock.error());
  }
  if (!*store_lock) {
    if (!far_over()) return {};
    return Fail(ErrorCode::kResourceExhausted,
                "{} is full, and another process keeps the lock to make room: {}",
                context_.store.Base(), context_.store.LockPath());
  }
  Attempt attempt;
  const auto wanted = [&] {
    return (full() && attempt.bytes < 2 * bytes) || attempt.bytes < make_way;
  };
  RETURN_IF_ERROR(EvictWhile(
      [&] {
        mutex_.AssertHeld();
        return wanted() ? FirstToGo(owner, bytes, attempt) : std::nullopt;
      },
      attempt, INT_MAX));
  if (wanted() && files.IsOverQuota(owner, bytes)) {
    return Fail(ErrorCode::kResourceExhausted,
                "{} is full, and what a tenant has of it is as much as --tenant-store-bytes and in "
                "use, or cannot be removed",
                context_.store.Base());
  }
  if (attempt.bytes >= make_way) return {};
  return Fail(ErrorCode::kResourceExhausted,
              "less than the share {} of the file system of {} is free, and nothing is left to "
              "evict; free space there or lower --disk-free-min",
              context_.options.free_share_min, context_.store.Base());
}

void DiskRoom::KeepToQuota(OwnerId owner) {
  MutexLock lock(mutex_);
  KeepToQuota(owner, 0);
}

void DiskRoom::KeepToQuota(OwnerId owner, uint64_t bytes) {
  const Catalogue& files = context_.index.files();
  if (!files.IsOverQuota(owner, bytes)) return;
  const auto store_lock = LockToEvict(/*patient=*/false);
  if (!store_lock || !*store_lock) return;
  Attempt attempt;
  // What stays for now goes with a later write, or by upkeep.
  (void)EvictWhile(
      [&] {
        const bool wanted =
            files.IsOverQuota(owner, bytes) && attempt.bytes < 2 * context_.file_bytes_max();
        return wanted ? files.ColdestOf(owner) : std::nullopt;
      },
      attempt, INT_MAX);
}

Status DiskRoom::FreeSpace(uint64_t bytes) {
  MutexLock lock(mutex_);
  if (!useless_.MayEvict(Clock::Real().Now())) {
    return Fail(ErrorCode::kResourceExhausted, "eviction made no room in {} a moment ago",
                context_.store.Base());
  }
  ASSIGN_OR_RETURN(const auto store_lock, LockToEvict(/*patient=*/true));
  if (!store_lock) {
    return Fail(ErrorCode::kResourceExhausted, "another process keeps the lock to make room: {}",
                context_.store.LockPath());
  }
  const uint64_t enough = evicted_bytes_ + bytes;
  Attempt attempt;
  RETURN_IF_ERROR(EvictWhile(
      [&] {
        mutex_.AssertHeld();
        return evicted_bytes_ < enough ? FirstToGo(kNobody, 0, attempt) : std::nullopt;
      },
      attempt, INT_MAX));
  if (evicted_bytes_ >= enough) return {};
  return Fail(ErrorCode::kResourceExhausted, "nothing is left to evict in {}",
              context_.store.Base());
}

void DiskRoom::NoteStillFull() {
  MutexLock lock(mutex_);
  useless_.Useless(Clock::Real().Now());
}

void DiskRoom::NoteWritten(uint64_t bytes, bool after_freeing) {
  space_.Wrote(bytes);
  if (!after_freeing) return;
  MutexLock lock(mutex_);
  useless_.Useful();
}

std::optional<CatalogueEntry> DiskRoom::FirstToGo(OwnerId owner, uint64_t bytes,
                                                  const Attempt& attempt) const {
  const Catalogue& files = context_.index.files();
  std::vector<OwnerId> owners = files.OverQuota();
  // Some of it is in use, or writes have ended since it was kept to its quota.
  const bool over_quota = files.IsOverQuota(owner, bytes);
  if (over_quota) owners.insert(owners.begin(), owner);
  for (const OwnerId over : owners) {
    const auto coldest = files.ColdestOf(over);
    if (coldest && !attempt.stuck.contains(coldest->id)) return coldest;
  }
  return over_quota ? std::nullopt : files.Coldest();
}

template <typename Next>
Status DiskRoom::EvictWhile(Next next, Attempt& attempt, int files_max) {
  for (int i = 0; i < files_max; ++i) {
    const std::optional<CatalogueEntry> coldest = next();
    if (!coldest) break;
    if (attempt.stuck.contains(coldest->id) || attempt.failures == kEvictionFailuresMax) {
      return Fail(
          ErrorCode::kResourceExhausted,
          "{} files in {} are in use or cannot be removed to make room for new ones; delete files "
          "or raise --disk-capacity",
          attempt.stuck.size(), context_.store.Base());
    }
    const Eviction eviction = EvictColdest(*coldest);
    if (eviction == Eviction::kDone) attempt.bytes += coldest->bytes;
    if (eviction == Eviction::kPinned || eviction == Eviction::kFailed) {
      attempt.stuck.insert(coldest->id);
    }
    if (eviction == Eviction::kFailed) ++attempt.failures;
  }
  return {};
}

template <typename Next, typename After>
void DiskRoom::EvictInBatches(Next next, After after) {
  Attempt attempt;
  while (!stop_) {
    const uint64_t before = attempt.bytes;
    {
      MutexLock lock(mutex_);
      const auto next_now = [&] { return next(attempt); };
      if (!next_now()) return;
      const auto store_lock = LockToEvict(/*patient=*/false);
      if (!store_lock || !*store_lock) return;
      if (!EvictWhile(next_now, attempt, kBatchFiles)) return;
    }
    after(attempt.bytes - before);
    between_batches_();
  }
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
  const Watched watched = context_.health.Watch(OverdueWatch::Kind::kWrite, path);
  const auto info = context_.fs.Stat(path);
  if (info && ClampMtime(info->mtime_s) > coldest.mtime_s) {
    // Another process has used it: it is not the coldest after all.
    files.Add({coldest.id, info->bytes, context_.Dated(path, *info).mtime_s});
    return Eviction::kKept;
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
    space_.Removed(coldest.bytes);
  }
  return Eviction::kDone;
}

bool DiskRoom::IsOverCapacity() const {
  return context_.index.files().bytes() > context_.options.capacity_bytes;
}

bool DiskRoom::IsOverfull() const {
  return IsOverCapacity() || !context_.index.files().OverQuota().empty();
}

void DiskRoom::Shrink() {
  const Catalogue& files = context_.index.files();
  for (const OwnerId owner : files.OverQuota()) {
    EvictInBatches([&](const Attempt&) {
      return files.IsOverQuota(owner, 0) ? files.ColdestOf(owner) : std::nullopt;
    });
  }
  EvictInBatches([&](const Attempt& attempt) {
    mutex_.AssertHeld();
    return IsOverCapacity() ? FirstToGo(kNobody, 0, attempt) : std::nullopt;
  });
  KeepSpaceFree();
}

void DiskRoom::KeepSpaceFree() {
  space_.Refresh();
  EvictInBatches(
      [&](const Attempt& attempt) {
        mutex_.AssertHeld();
        const bool wanted = space_.Missing(0) > 0 && useless_.MayEvict(Clock::Real().Now());
        return wanted ? FirstToGo(kNobody, 0, attempt) : std::nullopt;
      },
      [&](uint64_t removed) {
        // What was removed and written here is counted in it.
        const uint64_t expected = space_.free_bytes().value_or(0);
        space_.Refresh();
        const uint64_t free = space_.free_bytes().value_or(0);
        MutexLock lock(mutex_);
        useless_.Note(removed, static_cast<int64_t>(expected - free),
                      kBatchFiles * context_.file_bytes_max(), Clock::Real().Now());
      });
}

void DiskRoom::Expire() {
  if (context_.options.time_to_live.count() == 0) return;
  Catalogue& files = context_.index.files();
  EvictInBatches([&](const Attempt&) {
    auto coldest = files.Coldest();
    // A time that is ahead, as this process's clock was, would keep all that was used after that
    // file, too: it begins to age now.
    const int64_t now_s = UnixSeconds();
    while (coldest && IsAhead(coldest->mtime_s, now_s)) {
      files.Use(coldest->id, now_s, /*touch_after_s=*/0);
      coldest = files.Coldest();
    }
    return coldest && context_.index.IsExpired(coldest->mtime_s) ? coldest : std::nullopt;
  });
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
  stats.free_bytes = space_.free_bytes();
}

}  // namespace kvcake
