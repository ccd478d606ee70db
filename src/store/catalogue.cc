#include "store/catalogue.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

namespace kvcake {

Catalogue::Catalogue(uint64_t owner_quota_bytes) : index_(64, kNone), owners_(owner_quota_bytes) {}

bool Catalogue::Contains(const ChunkId& id) const {
  MutexLock lock(mutex_);
  return Find(id).has_value();
}

std::vector<bool> Catalogue::Contains(const ChunkKey& root, std::span<const ChunkKey> keys) const {
  std::vector<bool> known(keys.size());
  MutexLock lock(mutex_);
  const auto in_root = FindRoot(root);
  if (!in_root) return known;
  // Each lookup misses the CPU's cache twice: ask for all of them before waiting for one.
  for (const ChunkKey& key : keys) __builtin_prefetch(&index_[HomeOf(key)]);
  for (const ChunkKey& key : keys) {
    const SlotId slot = index_[HomeOf(key)];
    if (slot != kNone) __builtin_prefetch(&slots_[slot]);
  }
  for (size_t i = 0; i < keys.size(); ++i) known[i] = index_[Find(*in_root, keys[i])] != kNone;
  return known;
}

void Catalogue::Add(const CatalogueEntry& entry) {
  const auto mtime_s = static_cast<uint32_t>(ClampMtime(entry.mtime_s));
  MutexLock lock(mutex_);
  auto found = Find(entry.id);
  if (!found) {
    found = Insert(entry.id);
    LinkWarmest(*found);
    if (scanning_) scanned_.push_back(*found);
  } else if (mtime_s > slots_[*found].mtime_s) {
    Unlink(*found);
    LinkWarmest(*found);
  }
  Slot& slot = slots_[*found];
  bytes_ += entry.bytes - slot.bytes;
  roots_[slot.root].bytes += entry.bytes - slot.bytes;
  slot.bytes = entry.bytes;
  slot.mtime_s = std::max(slot.mtime_s, mtime_s);
  slot.scan = scan_;
  owners_.Set(*found, entry.owner, entry.bytes);
}

bool Catalogue::Use(const ChunkId& id, int64_t now_s, int64_t touch_after_s) {
  MutexLock lock(mutex_);
  const auto found = Find(id);
  if (!found) return false;
  Unlink(*found);
  LinkWarmest(*found);
  Slot& slot = slots_[*found];
  const int64_t mtime_s = slot.mtime_s;
  if (now_s - mtime_s < touch_after_s && !IsAhead(mtime_s, now_s)) return false;
  slot.mtime_s = static_cast<uint32_t>(now_s);
  return true;
}

bool Catalogue::Remove(const ChunkId& id) {
  MutexLock lock(mutex_);
  const auto found = Find(id);
  if (found) Erase(*found);
  if (scanning_) removed_.push_back(id);
  return found.has_value();
}

void Catalogue::Postpone(const ChunkId& id) {
  MutexLock lock(mutex_);
  if (const auto found = Find(id)) {
    Unlink(*found);
    LinkWarmest(*found);
  }
}

void Catalogue::BeginScan() {
  MutexLock lock(mutex_);
  ++scan_;
  scanning_ = true;
}

void Catalogue::LetOthersIn() { std::this_thread::sleep_for(std::chrono::microseconds(50)); }

template <typename Visit>
void Catalogue::InBatches(size_t n, const std::function<void()>& between, Visit visit) {
  for (size_t first = 0; first < n; first += kScanBatch) {
    if (first > 0) between();
    MutexLock lock(mutex_);
    for (size_t i = first; i < std::min(n, first + kScanBatch); ++i) visit(i);
  }
}

std::vector<ChunkId> Catalogue::EndScan(bool complete, const std::function<void()>& between) {
  size_t slots = 0;
  std::vector<SlotId> scanned;
  std::vector<ChunkId> again;
  {
    MutexLock lock(mutex_);
    scanning_ = false;
    slots = slots_.size();  // any that follow are newer than the scan
    scanned = std::exchange(scanned_, {});
    again = std::exchange(removed_, {});
    std::erase_if(again, [&](const ChunkId& id) {
      mutex_.AssertHeld();
      return !Find(id);
    });
  }
  if (complete) {
    InBatches(slots, between, [&](size_t slot) {
      mutex_.AssertHeld();
      if (slots_[slot].root != kNone && slots_[slot].scan != scan_) {
        Erase(static_cast<SlotId>(slot));
      }
    });
  }
  // By mtime; a slot that was freed and taken again while the scan ran is there twice, which
  // changes no order.
  std::vector<std::pair<uint32_t, SlotId>> order;
  order.reserve(scanned.size());
  InBatches(scanned.size(), between, [&](size_t i) {
    mutex_.AssertHeld();
    if (slots_[scanned[i]].root != kNone)
      order.emplace_back(slots_[scanned[i]].mtime_s, scanned[i]);
  });
  std::sort(order.begin(), order.end());
  InBatches(order.size(), between, [&](size_t i) {
    mutex_.AssertHeld();
    const SlotId slot = order[i].second;
    if (slots_[slot].root == kNone) return;
    Unlink(slot);
    LinkWarmest(slot);
  });
  return again;
}

std::optional<CatalogueEntry> Catalogue::Coldest() const {
  MutexLock lock(mutex_);
  if (coldest_ == kNone) return std::nullopt;
  return EntryOf(coldest_);
}

std::optional<CatalogueEntry> Catalogue::ColdestOf(OwnerId owner) const {
  MutexLock lock(mutex_);
  const SlotId coldest = owners_.Coldest(owner);
  if (coldest == kNone) return std::nullopt;
  return EntryOf(coldest);
}

std::optional<CatalogueEntry> Catalogue::Sample(uint64_t number) const {
  MutexLock lock(mutex_);
  if (files_ == 0) return std::nullopt;
  size_t slot = number % slots_.size();
  while (slots_[slot].root == kNone) slot = (slot + 1) % slots_.size();
  return EntryOf(static_cast<SlotId>(slot));
}

CatalogueEntry Catalogue::EntryOf(SlotId id) const {
  const Slot& slot = slots_[id];
  return {{roots_[slot.root].key, slot.key}, slot.bytes, slot.mtime_s, owners_.OwnerOf(id)};
}

uint64_t Catalogue::bytes() const {
  MutexLock lock(mutex_);
  return bytes_;
}

std::pair<uint64_t, uint64_t> Catalogue::Totals(const ChunkKey& root) const {
  MutexLock lock(mutex_);
  const auto found = FindRoot(root);
  if (!found) return {0, 0};
  return {roots_[*found].files, roots_[*found].bytes};
}

bool Catalogue::IsOverQuota(OwnerId owner, uint64_t more) const {
  MutexLock lock(mutex_);
  return owners_.IsOver(owner, more);
}

std::vector<OwnerId> Catalogue::OverQuota() const {
  MutexLock lock(mutex_);
  return owners_.Over();
}

std::vector<OwnedBytes> Catalogue::Owners() const {
  MutexLock lock(mutex_);
  return owners_.Totals();
}

std::optional<uint32_t> Catalogue::FindRoot(const ChunkKey& root) const {
  const auto found = root_index_.find(root);
  return found == root_index_.end() ? std::nullopt : std::optional(found->second);
}

// Keys are digests: any of their bytes are as good as a hash. Roots share keys seldom enough.
size_t Catalogue::HomeOf(const ChunkKey& key) const {
  uint64_t hash;
  std::memcpy(&hash, key.digest.data() + 8, sizeof(hash));
  return hash & (index_.size() - 1);
}

size_t Catalogue::Find(uint32_t root, const ChunkKey& key) const {
  size_t at = HomeOf(key);
  while (index_[at] != kNone) {
    const Slot& slot = slots_[index_[at]];
    if (slot.key == key && slot.root == root) break;
    at = (at + 1) & (index_.size() - 1);
  }
  return at;
}

std::optional<Catalogue::SlotId> Catalogue::Find(const ChunkId& id) const {
  const auto root = FindRoot(id.root);
  if (!root) return std::nullopt;
  const SlotId slot = index_[Find(*root, id.key)];
  return slot == kNone ? std::nullopt : std::optional(slot);
}

Catalogue::SlotId Catalogue::Insert(const ChunkId& id) {
  if (4 * (files_ + 1) > 3 * index_.size()) GrowIndex();
  auto root = FindRoot(id.root);
  if (!root) {
    root = static_cast<uint32_t>(roots_.size());
    roots_.push_back({.key = id.root});
    root_index_.emplace(id.root, *root);
  }
  SlotId slot = free_;
  if (slot == kNone) {
    slot = static_cast<SlotId>(slots_.size());
    slots_.emplace_back();
  } else {
    free_ = slots_[slot].warmer;
  }
  slots_[slot] = Slot{.key = id.key, .root = *root};
  index_[Find(*root, id.key)] = slot;
  ++files_;
  ++roots_[*root].files;
  return slot;
}

void Catalogue::Erase(SlotId id) {
  Slot& slot = slots_[id];
  bytes_ -= slot.bytes;
  roots_[slot.root].bytes -= slot.bytes;
  --roots_[slot.root].files;
  --files_;
  // What follows moves up, so that no probe meets a gap before what it looks for.
  const size_t mask = index_.size() - 1;
  size_t gap = Find(slot.root, slot.key);
  for (size_t at = (gap + 1) & mask; index_[at] != kNone; at = (at + 1) & mask) {
    const size_t home = HomeOf(slots_[index_[at]].key);
    if (((at - home) & mask) < ((at - gap) & mask)) continue;
    index_[gap] = index_[at];
    gap = at;
  }
  index_[gap] = kNone;
  Unlink(id);
  owners_.Remove(id);
  slot = Slot{.root = kNone, .warmer = free_};
  free_ = id;
}

void Catalogue::GrowIndex() {
  std::vector<SlotId> old(2 * index_.size(), kNone);
  old.swap(index_);
  for (const SlotId slot : old) {
    if (slot != kNone) index_[Find(slots_[slot].root, slots_[slot].key)] = slot;
  }
}

void Catalogue::Unlink(SlotId id) {
  const Slot& slot = slots_[id];
  (slot.colder == kNone ? coldest_ : slots_[slot.colder].warmer) = slot.warmer;
  (slot.warmer == kNone ? warmest_ : slots_[slot.warmer].colder) = slot.colder;
}

void Catalogue::LinkWarmest(SlotId id) {
  slots_[id].colder = warmest_;
  slots_[id].warmer = kNone;
  (warmest_ == kNone ? coldest_ : slots_[warmest_].warmer) = id;
  warmest_ = id;
  owners_.Use(id);
}

}  // namespace kvcake
