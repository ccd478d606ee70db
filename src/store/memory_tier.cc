#include "store/memory_tier.h"

#include <algorithm>

#include "base/check.h"

namespace kvcake {

MemoryTier::MemoryTier(MemoryTierOptions options) : options_(std::move(options)) {
  CHECK(options_.layout.layers > 0);
  CHECK(options_.max_reads_in_flight > 0);
}

MemoryTier::~MemoryTier() = default;

std::vector<bool> MemoryTier::Residency(std::span<const ChunkKey> keys) {
  std::lock_guard lock(mutex_);
  std::vector<bool> resident;
  resident.reserve(keys.size());
  for (const ChunkKey& key : keys) resident.push_back(chunks_.contains(key));
  return resident;
}

void MemoryTier::Unpin(std::span<const ChunkKey> keys) {
  pins_.Remove(keys);
  std::lock_guard lock(mutex_);
  for (const ChunkKey& key : keys) {
    auto it = chunks_.find(key);
    if (it != chunks_.end()) lru_.splice(lru_.end(), lru_, it->second.lru);
  }
}

ReadId MemoryTier::Get(ReadRequest request) {
  CheckLanding(options_.layout, request);
  ReadId id;
  {
    std::lock_guard lock(mutex_);
    id = next_id_++;
    reads_.insert(id);
  }
  const TimePoint when =
      options_.read_latency.count() > 0 ? Clock::Real().Now() + options_.read_latency : TimePoint{};
  callbacks_.At(when, [this, id, request = std::move(request)] { Deliver(id, request); });
  return id;
}

void MemoryTier::Deliver(ReadId id, const ReadRequest& request) {
  ReadResult result;
  std::shared_ptr<const std::vector<std::byte>> slabs;
  {
    std::lock_guard lock(mutex_);
    reads_.erase(id);
    auto it = chunks_.find(request.key);
    if (cancelled_.erase(id) > 0) {
      result.status = Fail(ErrorCode::kCancelled, "read cancelled");
    } else if (it == chunks_.end()) {
      result.status = Fail(ErrorCode::kNotFound, "chunk {} is not in memory", request.key.Hex());
    } else if (it->second.parent != request.parent) {
      result.status = Fail(ErrorCode::kCorrupt, "chunk {} has another parent", request.key.Hex());
      ++stats_.reads_failed;
      ++stats_.quarantined;
      EraseLocked(it);
    } else {
      slabs = it->second.slabs;
      lru_.splice(lru_.end(), lru_, it->second.lru);
      result.bytes = ReadBytes(options_.layout, request);
      result.numeric_path = it->second.numeric_path;
      ++stats_.reads;
      stats_.read_bytes += result.bytes;
    }
  }
  if (slabs && request.layers) {
    const size_t from = options_.layout.slab_offset(request.layers->first) - kPageHeaderBytes;
    std::copy_n(slabs->begin() + from, result.bytes, request.landing.begin());
  } else if (slabs) {
    std::copy(slabs->begin(), slabs->end(), request.landing.begin() + kPageHeaderBytes);
  }
  request.done(std::move(result));
}

void MemoryTier::Cancel(ReadId id) {
  std::lock_guard lock(mutex_);
  if (reads_.contains(id)) cancelled_.insert(id);
}

Status MemoryTier::Put(const ChunkWrite& chunk) {
  CHECK(chunk.page.size() >= options_.layout.page_bytes());
  const auto slabs =
      chunk.page.subspan(kPageHeaderBytes, options_.layout.page_bytes() - kPageHeaderBytes);
  auto copy = std::make_shared<const std::vector<std::byte>>(slabs.begin(), slabs.end());
  std::lock_guard lock(mutex_);
  if (chunks_.contains(chunk.key)) return {};
  if (auto status = MakeRoomLocked(); !status) {
    ++stats_.writes_failed;
    return status;
  }
  lru_.push_back(chunk.key);
  chunks_.emplace(chunk.key,
                  Chunk{chunk.parent, chunk.numeric_path, std::move(copy), std::prev(lru_.end())});
  ++stats_.writes;
  stats_.write_bytes += options_.layout.page_bytes();
  return {};
}

// For one chunk more; the coldest that is not pinned goes.
Status MemoryTier::MakeRoomLocked() {
  const uint64_t bytes = options_.layout.page_bytes();
  while ((chunks_.size() + 1) * bytes > options_.capacity_bytes) {
    const auto victim =
        std::find_if(lru_.begin(), lru_.end(), [&](auto& key) { return !pins_.Contains(key); });
    if (victim == lru_.end()) {
      return Fail(ErrorCode::kResourceExhausted,
                  "no room for a chunk of {} bytes: the tier's {} bytes hold {} chunks in use",
                  bytes, options_.capacity_bytes, chunks_.size());
    }
    EraseLocked(chunks_.find(*victim));
    ++stats_.evicted;
  }
  return {};
}

Status MemoryTier::Evict(const ChunkKey& key) {
  std::lock_guard lock(mutex_);
  if (auto it = chunks_.find(key); it != chunks_.end()) {
    EraseLocked(it);
    ++stats_.evicted;
  }
  return {};
}

void MemoryTier::EraseLocked(std::unordered_map<ChunkKey, Chunk>::iterator it) {
  lru_.erase(it->second.lru);
  chunks_.erase(it);
}

TierStats MemoryTier::Stats() const {
  std::lock_guard lock(mutex_);
  TierStats stats = stats_;
  stats.chunks = chunks_.size();
  stats.pinned = pins_.size();
  stats.bytes = chunks_.size() * options_.layout.page_bytes();
  return stats;
}

}  // namespace kvcake
