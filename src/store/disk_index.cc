#include "store/disk_index.h"

namespace kvcake {
namespace {

constexpr size_t kNotedMax = 1 << 16;  // keys; more than these are noted anew
constexpr Seconds kStuckPause{60};

}  // namespace

DiskIndex::DiskIndex(const DiskTierOptions& options)
    : root_(options.root),
      missing_ttl_(options.missing_ttl),
      time_to_live_s_(static_cast<int64_t>(options.time_to_live.count())),
      touch_after_s_(static_cast<int64_t>(options.touch_interval.count())),
      files_(options.owner_quota_bytes) {}

bool DiskIndex::IsPinned(const ChunkId& id) const {
  return id.root == root_ && pins_.Contains(id.key);
}

bool DiskIndex::IsExpired(int64_t mtime_s) const {
  return time_to_live_s_ > 0 && mtime_s < UnixSeconds() - time_to_live_s_;
}

std::vector<bool> DiskIndex::Contains(std::span<const ChunkKey> keys) const {
  return files_.Contains(root_, keys);
}

void DiskIndex::Add(const ChunkKey& key, const FileInfo& info, OwnerId owner) {
  files_.Add({{root_, key}, info.bytes, info.mtime_s, owner});
}

void DiskIndex::AddWritten(const ChunkKey& key, uint64_t bytes, OwnerId owner) {
  files_.Add({{root_, key}, bytes, UnixSeconds(), owner});
  MutexLock lock(mutex_);
  missing_.erase(key);
  unreadable_.erase(key);
}

bool DiskIndex::Use(const ChunkKey& key, int64_t now_s) {
  return files_.Use({root_, key}, now_s, touch_after_s_);
}

void DiskIndex::NoteMissing(const ChunkKey& key) { NoteMissingFor(key, missing_ttl_); }

void DiskIndex::Forget(const ChunkKey& key) {
  Remove(key);
  NoteMissing(key);
}

void DiskIndex::NoteMissingFor(const ChunkKey& key, Seconds duration) {
  MutexLock lock(mutex_);
  if (missing_.size() >= kNotedMax) missing_.clear();
  missing_[key] = Clock::Real().Now() + duration;
}

bool DiskIndex::IsMissing(const ChunkKey& key) const {
  MutexLock lock(mutex_);
  const auto it = missing_.find(key);
  return it != missing_.end() && Clock::Real().Now() < it->second;
}

void DiskIndex::NoteUnreadable(const ChunkKey& key) {
  MutexLock lock(mutex_);
  if (unreadable_.size() >= kNotedMax) unreadable_.clear();
  unreadable_.insert(key);
}

void DiskIndex::NoteReadable(const ChunkKey& key) {
  MutexLock lock(mutex_);
  unreadable_.erase(key);
}

bool DiskIndex::IsUnreadable(const ChunkKey& key) const {
  MutexLock lock(mutex_);
  return unreadable_.contains(key);
}

void DiskIndex::NoteStuck(const ChunkKey& key) {
  NoteUnreadable(key);
  NoteMissingFor(key, kStuckPause);
}

}  // namespace kvcake
