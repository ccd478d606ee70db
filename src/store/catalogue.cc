#include "store/catalogue.h"

#include <algorithm>

namespace kvcake {

bool Catalogue::Contains(const ChunkId& id) const {
  std::lock_guard lock(mutex_);
  return slots_.contains(id);
}

void Catalogue::Add(const CatalogueEntry& entry) {
  std::lock_guard lock(mutex_);
  AddLocked(entry);
}

void Catalogue::AddLocked(const CatalogueEntry& entry) {
  auto [it, inserted] = slots_.try_emplace(entry.id);
  Slot& slot = it->second;
  Total& total = totals_[entry.id.root];
  slot.generation = ++generation_;
  if (inserted) {
    slot.lru = lru_.insert(lru_.end(), entry.id);
    ++total.files;
  } else if (entry.mtime_s > slot.mtime_s) {
    lru_.splice(lru_.end(), lru_, slot.lru);
  }
  bytes_ += entry.bytes - slot.bytes;
  total.bytes += entry.bytes - slot.bytes;
  slot.bytes = entry.bytes;
  slot.mtime_s = std::max(slot.mtime_s, entry.mtime_s);
}

bool Catalogue::Use(const ChunkId& id, int64_t now_s, int64_t touch_after_s) {
  std::lock_guard lock(mutex_);
  auto it = slots_.find(id);
  if (it == slots_.end()) return false;
  lru_.splice(lru_.end(), lru_, it->second.lru);
  if (now_s - it->second.mtime_s < touch_after_s) return false;
  it->second.mtime_s = now_s;
  return true;
}

bool Catalogue::Remove(const ChunkId& id) {
  std::lock_guard lock(mutex_);
  auto it = slots_.find(id);
  if (it == slots_.end()) return false;
  RemoveLocked(it);
  return true;
}

void Catalogue::RemoveLocked(std::unordered_map<ChunkId, Slot>::iterator it) {
  auto total = totals_.find(it->first.root);
  bytes_ -= it->second.bytes;
  total->second.bytes -= it->second.bytes;
  if (--total->second.files == 0) totals_.erase(total);
  lru_.erase(it->second.lru);
  slots_.erase(it);
}

void Catalogue::Postpone(const ChunkId& id) {
  std::lock_guard lock(mutex_);
  if (auto it = slots_.find(id); it != slots_.end()) {
    lru_.splice(lru_.end(), lru_, it->second.lru);
  }
}

void Catalogue::Replace(const std::vector<CatalogueEntry>& entries, uint64_t scan_started,
                        bool complete) {
  std::vector<const CatalogueEntry*> by_use;
  for (const CatalogueEntry& entry : entries) by_use.push_back(&entry);
  std::sort(by_use.begin(), by_use.end(), [](const CatalogueEntry* a, const CatalogueEntry* b) {
    return std::pair(a->mtime_s, a->id) < std::pair(b->mtime_s, b->id);
  });
  std::lock_guard lock(mutex_);
  const uint64_t before = generation_;
  for (const CatalogueEntry* entry : by_use) AddLocked(*entry);
  if (!complete) return;
  for (auto it = slots_.begin(); it != slots_.end();) {
    const bool seen = it->second.generation > before;
    const bool newer = it->second.generation > scan_started;
    auto next = std::next(it);
    if (!seen && !newer) RemoveLocked(it);
    it = next;
  }
}

uint64_t Catalogue::generation() const {
  std::lock_guard lock(mutex_);
  return generation_;
}

std::optional<CatalogueEntry> Catalogue::Coldest() const {
  std::lock_guard lock(mutex_);
  if (lru_.empty()) return std::nullopt;
  const auto& slot = slots_.at(lru_.front());
  return CatalogueEntry{lru_.front(), slot.bytes, slot.mtime_s};
}

uint64_t Catalogue::bytes() const {
  std::lock_guard lock(mutex_);
  return bytes_;
}

std::pair<uint64_t, uint64_t> Catalogue::Totals(const ChunkKey& root) const {
  std::lock_guard lock(mutex_);
  auto it = totals_.find(root);
  if (it == totals_.end()) return {0, 0};
  return {it->second.files, it->second.bytes};
}

}  // namespace kvcake
