// A tier in memory, for tests of the rooms above: the contract of Tier and nothing else.
#pragma once

#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/callback_thread.h"
#include "base/clock.h"
#include "store/pins.h"
#include "store/tier.h"

namespace kvcake {

struct MemoryTierOptions {
  KvLayout layout;
  uint64_t capacity_bytes = 1ull << 30;  // beyond it the chunk used longest ago goes
  int max_reads_in_flight = 16;
  uint64_t max_read_bytes_in_flight = 64ull << 20;
  Seconds read_latency{0};  // of every read; overlapping
  std::string name = "memory";
};

// Reads are delivered on the tier's own thread, in the order of Get when latency does not change
// it. The header of a landing is left as it is.
class MemoryTier : public Tier {
 public:
  explicit MemoryTier(MemoryTierOptions options);
  ~MemoryTier() override;

  std::string_view name() const override { return options_.name; }
  int max_reads_in_flight() const override { return options_.max_reads_in_flight; }
  uint64_t max_read_bytes_in_flight() const override { return options_.max_read_bytes_in_flight; }
  std::vector<bool> Residency(std::span<const ChunkKey> keys) override;
  void Pin(std::span<const ChunkKey> keys) override { pins_.Add(keys); }
  void Unpin(std::span<const ChunkKey> keys) override;
  ReadId Get(ReadRequest request) override;
  void Cancel(ReadId id) override;
  Status Put(const ChunkWrite& chunk) override;
  Status Evict(const ChunkKey& key) override;
  TierStats Stats() const override;

 private:
  struct Chunk {
    ChunkKey parent;
    NumericPath numeric_path;
    std::shared_ptr<const std::vector<std::byte>> slabs;  // outlives its eviction while read
    std::list<ChunkKey>::iterator lru;
  };
  void Deliver(ReadId id, const ReadRequest& request);
  Status MakeRoomLocked();
  void EraseLocked(std::unordered_map<ChunkKey, Chunk>::iterator it);

  // Constant after construction.
  const MemoryTierOptions options_;

  Pins pins_;  // self-synchronised

  mutable std::mutex mutex_;
  // Guarded by mutex_.
  std::unordered_map<ChunkKey, Chunk> chunks_;
  std::list<ChunkKey> lru_;  // coldest first
  std::unordered_set<ReadId> reads_;
  std::unordered_set<ReadId> cancelled_;
  ReadId next_id_ = 1;
  TierStats stats_;

  CallbackThread callbacks_;  // last: its thread ends before the rest goes
};

}  // namespace kvcake
