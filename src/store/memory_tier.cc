#include "store/memory_tier.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace kvcake {
namespace {

// The part of a page that is kept.
template <typename Byte>
std::span<Byte> Slabs(const KvLayout& layout, std::span<Byte> page) {
  return page.first(layout.page_bytes()).subspan(kPageHeaderBytes);
}

}  // namespace

MemoryTier::MemoryTier(MemoryTierOptions options)
    : options_(std::move(options)),
      page_bytes_(options_.layout.page_bytes()),
      own_(options_.memory.empty()
               ? std::make_unique_for_overwrite<std::byte[]>(options_.capacity_bytes)
               : nullptr),
      memory_(own_ ? std::span(own_.get(), options_.capacity_bytes) : options_.memory),
      slots_(memory_.size() / page_bytes_),
      owners_(options_.owner_quota_bytes) {
  CHECK(options_.layout.layers > 0);
  CHECK(options_.max_reads_in_flight > 0);
  CHECK(!slots_.empty() && slots_.size() < kNoSlot);
  free_.reserve(slots_.size());
  for (auto slot = static_cast<SlotId>(slots_.size()); slot-- > 0;) free_.push_back(slot);
}

MemoryTier::~MemoryTier() {
  MutexLock lock(mutex_);
  while (unanswered_ > 0) changed_.Wait(mutex_);
}

std::vector<bool> MemoryTier::Residency(std::span<const ChunkKey> keys) {
  MutexLock lock(mutex_);
  std::vector<bool> resident;
  resident.reserve(keys.size());
  for (const ChunkKey& key : keys) resident.push_back(by_key_.contains(key));
  return resident;
}

void MemoryTier::Unpin(std::span<const ChunkKey> keys) {
  pins_.Remove(keys);
  MutexLock lock(mutex_);
  for (const ChunkKey& key : keys) {
    const auto it = by_key_.find(key);
    if (it != by_key_.end()) UseLocked(it->second);
  }
}

ReadId MemoryTier::Get(ReadRequest request) {
  CheckLanding(options_.layout, request);
  ReadId id;
  {
    MutexLock lock(mutex_);
    id = next_id_++;
    ++unanswered_;
    reads_.emplace(id, Read{.request = std::move(request)});
  }
  const TimePoint when =
      options_.read_latency.count() > 0 ? Clock::Real().Now() + options_.read_latency : TimePoint{};
  callbacks_.At(when, [this, id] { Begin(id); });
  return id;
}

void MemoryTier::Begin(ReadId id) {
  MutexLock lock(mutex_);
  Read& read = reads_.at(id);
  StartLocked(read);
  lock.Unlock();
  if (read.slot == kNoSlot) {
    Finish(id);
  } else {
    Copy(id, read);
  }
}

// Gives the read its slot, or the reason why it has none.
void MemoryTier::StartLocked(Read& read) {
  const ReadRequest& request = read.request;
  const auto it = by_key_.find(request.key);
  if (read.cancelled) {
    read.result.status = Fail(ErrorCode::kCancelled, "read cancelled");
    return;
  }
  if (it == by_key_.end()) {
    read.result.status = Fail(ErrorCode::kNotFound, "chunk {} is not in memory", request.key.Hex());
    return;
  }
  Slot& slot = slots_[it->second];
  if (slot.parent != request.parent) {
    read.result.status =
        Fail(ErrorCode::kCorrupt, "chunk {} has another parent", request.key.Hex());
    ++stats_.reads_failed;
    ++stats_.quarantined;
    ForgetLocked(it->second);
    return;
  }
  read.slot = it->second;
  ++slot.reads;
  UseLocked(read.slot);
  read.result = {
      .status = {}, .bytes = ReadBytes(options_.layout, request), .numeric_path = slot.path};
}

void MemoryTier::Copy(ReadId id, const Read& read) {
  const ReadRequest& request = read.request;
  std::span<std::byte> from = BytesOf(read.slot), to = request.landing;
  if (request.layers) {
    to = to.first(read.result.bytes);
    from = from.subspan(options_.layout.slab_offset(request.layers->first), to.size());
  } else {
    to = Slabs(options_.layout, to);
    from = Slabs(options_.layout, from);
  }
  if (options_.copier != nullptr) {
    options_.copier->ToPage(to, from, [this, id] { callbacks_.Soon([this, id] { Finish(id); }); });
    return;
  }
  std::ranges::copy(from, to.begin());
  Finish(id);
}

void MemoryTier::Finish(ReadId id) {
  MutexLock lock(mutex_);
  auto node = reads_.extract(id);
  Read& read = node.mapped();
  if (read.slot != kNoSlot) {
    ++stats_.reads;
    stats_.read_bytes += read.result.bytes;
    Slot& slot = slots_[read.slot];
    if (--slot.reads == 0 && !slot.held) free_.push_back(read.slot);
  }
  lock.Unlock();
  read.request.done(std::move(read.result));
  node = {};  // what `done` captured goes before the tier may
  lock.Lock();
  --unanswered_;
  changed_.NotifyAll();
}

void MemoryTier::Cancel(ReadId id) {
  MutexLock lock(mutex_);
  if (const auto it = reads_.find(id); it != reads_.end()) it->second.cancelled = true;
}

Status MemoryTier::Put(const ChunkWrite& chunk) {
  CHECK(chunk.page.size() >= page_bytes_);
  MutexLock lock(mutex_);
  if (by_key_.contains(chunk.key)) return {};
  const Result<SlotId> taken = TakeSlotLocked(chunk.owner);
  if (!taken) {
    ++stats_.writes_failed;
    return tl::unexpected(taken.error());
  }
  lock.Unlock();
  const auto from = Slabs(options_.layout, chunk.page);
  const auto to = Slabs(options_.layout, BytesOf(*taken));
  if (options_.copier != nullptr) {
    CopyFromPage(*options_.copier, to, from);
  } else {
    std::ranges::copy(from, to.begin());
  }
  lock.Lock();
  if (!by_key_.try_emplace(chunk.key, *taken).second) {  // another Put of it was quicker
    owners_.Remove(*taken);
    free_.push_back(*taken);
    return {};
  }
  slots_[*taken] = {.key = chunk.key,
                    .parent = chunk.parent,
                    .path = chunk.numeric_path,
                    .held = true,
                    .lru = lru_.insert(lru_.end(), *taken)};
  owners_.Use(*taken);
  KeepToQuotaLocked(chunk.owner, 0);  // the others that were being written could not go
  ++stats_.writes;
  stats_.write_bytes += page_bytes_;
  return {};
}

Status MemoryTier::Evict(const ChunkKey& key) {
  MutexLock lock(mutex_);
  if (const auto it = by_key_.find(key); it != by_key_.end()) {
    EvictLocked(it->second);
  }
  return {};
}

TierStats MemoryTier::Stats() const {
  MutexLock lock(mutex_);
  TierStats stats = stats_;
  stats.chunks = by_key_.size();
  stats.bytes = by_key_.size() * page_bytes_;
  return stats;
}

std::vector<OwnedBytes> MemoryTier::Owners() const {
  MutexLock lock(mutex_);
  return owners_.Totals();
}

std::span<std::byte> MemoryTier::BytesOf(SlotId slot) const {
  return memory_.subspan(slot * page_bytes_, page_bytes_);
}

Result<MemoryTier::SlotId> MemoryTier::TakeSlotLocked(OwnerId owner) {
  KeepToQuotaLocked(owner, page_bytes_);
  if (free_.empty()) {
    const SlotId victim = FirstToGoLocked(owner);
    if (victim == kNoSlot) {
      return Fail(ErrorCode::kResourceExhausted,
                  "no room for a chunk of {} bytes: all {} chunks that the {} bytes of {} hold are "
                  "in use, or not its tenant's to displace",
                  page_bytes_, by_key_.size(), memory_.size(), options_.name);
    }
    EvictLocked(victim);
  }
  const SlotId slot = free_.back();
  free_.pop_back();
  owners_.Set(slot, owner, page_bytes_);
  return slot;
}

void MemoryTier::KeepToQuotaLocked(OwnerId owner, uint64_t bytes) {
  for (SlotId slot = owners_.Coldest(owner); slot != kNoSlot && owners_.IsOver(owner, bytes);) {
    const SlotId next = owners_.Warmer(slot);
    if (MayGoLocked(slot)) EvictLocked(slot);
    slot = next;
  }
}

MemoryTier::SlotId MemoryTier::FirstToGoLocked(OwnerId owner) const {
  for (const OwnerId over : owners_.Over()) {
    for (SlotId slot = owners_.Coldest(over); slot != kNoSlot; slot = owners_.Warmer(slot)) {
      if (MayGoLocked(slot)) return slot;
    }
  }
  if (owners_.IsOver(owner, page_bytes_)) return kNoSlot;
  for (const SlotId slot : lru_) {
    if (MayGoLocked(slot)) return slot;
  }
  return kNoSlot;
}

bool MemoryTier::MayGoLocked(SlotId slot) const {
  const Slot& held = slots_[slot];
  return held.held && held.reads == 0 && !pins_.Contains(held.key);
}

void MemoryTier::UseLocked(SlotId slot) {
  lru_.splice(lru_.end(), lru_, slots_[slot].lru);
  owners_.Use(slot);
}

void MemoryTier::EvictLocked(SlotId slot) {
  ForgetLocked(slot);
  ++stats_.evicted;
}

// Reads that use it still go on.
void MemoryTier::ForgetLocked(SlotId slot) {
  owners_.Remove(slot);
  by_key_.erase(slots_[slot].key);
  lru_.erase(slots_[slot].lru);
  slots_[slot].held = false;
  if (slots_[slot].reads == 0) free_.push_back(slot);
}

}  // namespace kvcake
