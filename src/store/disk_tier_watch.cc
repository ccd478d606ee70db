// What DiskTier knows of its directory: which chunks are there, and which have to go.
#include <algorithm>

#include "store/disk_tier.h"

namespace kvcake {
namespace {

constexpr size_t kMissingMax = 1 << 16;
constexpr Seconds kLookPiece{2e-3};  // answers are not held back for longer
// Upkeep may take this share of a core.
constexpr double kUpkeepShare = 0.02;

}  // namespace

bool DiskTier::Stopping() const {
  std::lock_guard lock(mutex_);
  return stop_;
}

std::vector<bool> DiskTier::Residency(std::span<const ChunkKey> keys) {
  if (breaker_.open() || lost_) return std::vector<bool>(keys.size());
  return catalogue_.Contains(options_.root, keys);
}

void DiskTier::Unpin(std::span<const ChunkKey> keys) {
  pins_.Remove(keys);
  const int64_t now_s = UnixSeconds();
  const auto touch_after_s = static_cast<int64_t>(options_.touch_interval.count());
  std::vector<std::string> touched;
  for (const ChunkKey& key : keys) {
    const ChunkId id{options_.root, key};
    if (catalogue_.Use(id, now_s, touch_after_s)) touched.push_back(store_.ChunkPath(id));
  }
  if (touched.empty()) return;
  upkeep_.Soon([this, now_s, touched = std::move(touched)] {
    // A read-only store keeps the mtimes that it has.
    for (const std::string& path : touched) (void)fs_.Touch(path, now_s);
  });
}

void DiskTier::NoteMissing(const ChunkKey& key, Seconds until_after) {
  std::lock_guard lock(mutex_);
  if (missing_.size() >= kMissingMax) missing_.clear();
  missing_[key] = Clock::Real().Now() + until_after;
}

bool DiskTier::IsMissing(const ChunkKey& key) const {
  std::lock_guard lock(mutex_);
  const auto it = missing_.find(key);
  return it != missing_.end() && Clock::Real().Now() < it->second;
}

void DiskTier::NoteUnreadable(const ChunkKey& key) {
  std::lock_guard lock(mutex_);
  if (unreadable_.size() >= kMissingMax) unreadable_.clear();
  unreadable_.insert(key);
}

bool DiskTier::IsUnreadable(const ChunkKey& key) const {
  std::lock_guard lock(mutex_);
  return unreadable_.contains(key);
}

bool DiskTier::IsExpired(int64_t mtime_s) const {
  const auto ttl_s = static_cast<int64_t>(options_.time_to_live.count());
  return ttl_s > 0 && mtime_s < UnixSeconds() - ttl_s;
}

bool DiskTier::Look(LookRequest request) {
  if (breaker_.open() || lost_ || watch_.overdue(OverdueWatch::Kind::kLook) > 0) return false;
  const auto missing = [&](const ChunkKey& key) { return IsMissing(key); };
  if (std::all_of(request.keys.begin(), request.keys.end(), missing)) return false;
  looks_.Soon([this, request = std::move(request)] { LookFor(request); });
  return true;
}

void DiskTier::LookFor(const LookRequest& request) {
  for (size_t first = 0; first < request.keys.size();) {
    const TimePoint until = Clock::Real().Now() + kLookPiece;
    std::vector<bool> held;
    do {
      held.push_back(!Stopping() && !breaker_.open() &&
                     IsOnDisk(request.keys[first + held.size()]));
    } while (first + held.size() < request.keys.size() && Clock::Real().Now() < until);
    if (!request.found(first, held)) return;
    first += held.size();
  }
}

bool DiskTier::IsOnDisk(const ChunkKey& key) {
  const ChunkId id{options_.root, key};
  if (catalogue_.Contains(id)) return true;
  if (IsMissing(key)) return false;
  const std::string path = store_.ChunkPath(id);
  const Watched watched(watch_, OverdueWatch::Kind::kLook, path);
  const auto info = fs_.Stat(path);
  if (info && info->kind == FileInfo::Kind::kRegular &&
      info->bytes == options_.layout.page_bytes() && !IsExpired(info->mtime_s)) {
    catalogue_.Add({id, info->bytes, info->mtime_s});
    return true;
  }
  NoteMissing(key, options_.missing_ttl);
  return false;
}

// Counts what other processes have written and removes what is too much, however little is written
// here, so that the directory keeps to its capacity.
void DiskTier::Upkeep() {
  if (Stopping()) return;
  const TimePoint began = Clock::Real().Now();
  {
    std::lock_guard lock(eviction_mutex_);
    if (ChangedSince(scanned_unix_s_)) {
      scanned_unix_s_ = UnixSeconds();
      RescanLocked();
    }
  }
  Expire();
  if (catalogue_.bytes() > options_.capacity_bytes) (void)MakeRoom(0);
  const TimePoint now = Clock::Real().Now();
  const Seconds pause = std::max(options_.upkeep_interval, (now - began) / kUpkeepShare);
  upkeep_.At(now + pause, [this] { Upkeep(); });
}

// Whether a file came or went in any directory of chunks. Its mtime may be of this second and a
// change still come: such a directory counts as changed once more.
bool DiskTier::ChangedSince(int64_t unix_s) {
  const auto changed = [&](const FileInfo& info) { return info.mtime_s + 1 >= unix_s; };
  const auto base = fs_.Stat(store_.Base());
  if (!base) return base.error().code == ErrorCode::kNotFound && catalogue_.bytes() > 0;
  if (changed(*base)) return true;
  const auto roots = fs_.List(store_.Base());
  if (!roots) return false;
  for (const DirEntry& root : *roots) {
    if (root.info.kind != FileInfo::Kind::kDirectory) continue;
    if (ParseKeyHex(root.name) && changed(root.info)) return true;
    const auto shards = fs_.List(store_.Base() + "/" + root.name);
    if (!shards) continue;
    for (const DirEntry& shard : *shards) {
      if (shard.info.kind == FileInfo::Kind::kDirectory && changed(shard.info)) return true;
    }
  }
  return false;
}

// Removes what nobody has used for too long, unless another process is evicting.
void DiskTier::Expire() {
  std::lock_guard lock(eviction_mutex_);
  auto coldest = catalogue_.Coldest();
  if (!coldest || !IsExpired(coldest->mtime_s)) return;
  const auto store_lock = fs_.TryLock(store_.LockPath());
  if (!store_lock || !*store_lock) return;
  while (coldest && IsExpired(coldest->mtime_s) && EvictColdest(*coldest) == Eviction::kDone) {
    coldest = catalogue_.Coldest();
  }
}

}  // namespace kvcake
