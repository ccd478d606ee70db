// A tier in host memory: what stands behind pages that lie elsewhere, as those in GPU memory.
//
// Its memory is one piece, there from the start and divided into slots of a page each. The life of
// a slot:
//   free -> being written (its Put's alone) -> held under its key, where any number of reads use it
//   -> forgotten (evicted, or found corrupt), until the last of its reads has ended -> free
// A Put that finds no free slot makes room: the chunk goes that was used longest ago and is neither
// pinned nor being read. Where there is none it fails at once with kResourceExhausted, as waiting
// for readers would hold up whoever writes. Where owners have quotas, a Put beyond its
// owner's makes room among the owner's own chunks, and takes nobody else's.
//
// A chunk was verified when it was loaded, or is as compute has made it; memory is trusted to keep
// it. A read checks its parent, and not its bytes.
#pragma once

#include <list>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/callback_thread.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "kv/page_copier.h"
#include "store/owner_lists.h"
#include "store/pins.h"
#include "store/tier.h"

namespace kvcake {

struct MemoryTierOptions {
  KvLayout layout;
  // Outlives the tier; page-locked where the copier wants that. Empty: the tier takes
  // capacity_bytes itself. Either is a page at least.
  std::span<std::byte> memory = {};
  uint64_t capacity_bytes = 1ull << 30;
  uint64_t owner_quota_bytes = 0;  // of it, for each owner; 0: no quotas
  // Reads and writes chunks' pages where nobody else can; outlives the tier. Null: they are memory
  // of the process.
  PageCopier* copier = nullptr;
  int max_reads_in_flight = 16;
  uint64_t max_read_bytes_in_flight = 64ull << 20;
  Seconds read_latency{0};  // of every read; overlapping
  std::string name = "memory";
};

// Reads are delivered on the tier's own thread; without a copier in the order of Get, when latency
// does not change it. That thread does not wait for copies; one that has begun is not cancelled,
// its read comes. The header of a landing is left as it is.
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
  std::vector<OwnedBytes> Owners() const override;

 private:
  using SlotId = OwnerLists::Slot;
  static constexpr SlotId kNoSlot = OwnerLists::kNone;
  struct Slot {
    ChunkKey key;
    ChunkKey parent;
    NumericPath path = NumericPath::kUnknown;
    int reads = 0;                      // that have not ended
    bool held = false;                  // findable by its key
    std::list<SlotId>::iterator lru{};  // valid while held
  };
  struct Read {
    ReadRequest request;
    bool cancelled = false;
    SlotId slot = kNoSlot;
    ReadResult result = {};
  };

  // Reads; on the thread of callbacks_.
  void Begin(ReadId id) EXCLUDES(mutex_);
  void StartLocked(Read& read) REQUIRES(mutex_);
  void Copy(ReadId id, const Read& read);
  void Finish(ReadId id) EXCLUDES(mutex_);

  std::span<std::byte> BytesOf(SlotId slot) const;
  // A slot to write, which counts for the owner from now on.
  Result<SlotId> TakeSlotLocked(OwnerId owner) REQUIRES(mutex_);
  // Evicts the owner's own chunks, as far as they may go, until `bytes` more are within its quota.
  void KeepToQuotaLocked(OwnerId owner, uint64_t bytes) REQUIRES(mutex_);
  // What goes first to make room for a chunk of the owner's; kNoSlot: nothing may go, or it has its
  // quota, and only what others may keep could go.
  SlotId FirstToGoLocked(OwnerId owner) const REQUIRES(mutex_);
  bool MayGoLocked(SlotId slot) const REQUIRES(mutex_);
  void UseLocked(SlotId slot) REQUIRES(mutex_);
  void EvictLocked(SlotId slot) REQUIRES(mutex_);
  void ForgetLocked(SlotId slot) REQUIRES(mutex_);

  // Constant after construction.
  const MemoryTierOptions options_;
  const uint64_t page_bytes_;
  const std::unique_ptr<std::byte[]> own_;  // where the owner gave none
  const std::span<std::byte> memory_;

  Pins pins_;  // self-synchronised

  mutable Mutex mutex_;
  CondVar changed_;
  std::vector<Slot> slots_ GUARDED_BY(mutex_);
  std::vector<SlotId> free_ GUARDED_BY(mutex_);
  std::unordered_map<ChunkKey, SlotId> by_key_ GUARDED_BY(mutex_);
  std::list<SlotId> lru_ GUARDED_BY(mutex_);  // held, coldest first
  OwnerLists owners_ GUARDED_BY(mutex_);      // of what is held or being written
  std::unordered_map<ReadId, Read> reads_ GUARDED_BY(mutex_);
  uint64_t unanswered_ GUARDED_BY(mutex_) = 0;  // reads
  ReadId next_id_ GUARDED_BY(mutex_) = 1;
  TierStats stats_ GUARDED_BY(mutex_);

  CallbackThread callbacks_;  // last: its thread ends before the rest goes
};

}  // namespace kvcake
