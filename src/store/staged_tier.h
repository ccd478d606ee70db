// A decorator for pages that tiers cannot touch, as those in GPU memory: every chunk passes through
// a staging slot in host memory, where it is read and verified before it is copied to its landing.
//
// A read waits for a slot, then for the inner tier, then for its copy, and has its slot until it
// ends: one that is cancelled until the inner tier has let go of it. Writes have slots of their
// own, so that neither kind can starve the other.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/callback_thread.h"
#include "base/mutex.h"
#include "kv/page_copier.h"
#include "store/tier_decorator.h"
#include "store/write_slots.h"

namespace kvcake {

struct StagedTierOptions {
  int read_slots = 8;   // reads in flight, at most
  int write_slots = 2;  // Puts at the same time; more of them wait
  KvLayout layout = {};

  // A slot holds a page.
  uint64_t staging_bytes() const {
    return static_cast<uint64_t>(read_slots + write_slots) * layout.page_bytes();
  }
};

// A read that fails or is cancelled before its copy leaves its landing as it was. Reads beyond the
// slots wait in the order of Get.
class StagedTier : public TierDecorator {
 public:
  // `staging`: 4 KiB-aligned, of staging_bytes() at least; page-locked where the copier wants it.
  // It and the copier outlive the tier.
  StagedTier(std::unique_ptr<Tier> inner, PageCopier& copier, std::span<std::byte> staging,
             StagedTierOptions options);
  // Cancels the reads that are left, then waits for their `done`.
  ~StagedTier() override;

  int max_reads_in_flight() const override;
  uint64_t max_read_bytes_in_flight() const override;
  int max_writes_in_flight() const override;
  ReadId Get(ReadRequest request) override;
  void Cancel(ReadId id) override;
  Status Put(const ChunkWrite& chunk) override;

 private:
  using Slot = WriteSlots::Slot;
  struct Read {
    ReadRequest request;
    Slot slot = {};  // empty: waits for one
    bool cancelled = false;
    ReadResult result = {};
  };

  // Reads; on the thread of callbacks_.
  void StartWaiting();
  void OnInnerDone(ReadId id, ReadResult result);
  void CancelRead(ReadId id);
  void Finish(ReadId id) EXCLUDES(mutex_);

  // Constant after construction.
  const StagedTierOptions options_;
  PageCopier& copier_;

  // The thread of callbacks_ has these for itself.
  std::unordered_map<ReadId, Read> reads_;
  std::deque<ReadId> waiting_;  // for a slot, in the order of Get
  std::vector<Slot> read_slots_;

  WriteSlots write_slots_;  // self-synchronised

  Mutex mutex_;
  CondVar changed_;
  ReadId next_id_ GUARDED_BY(mutex_) = 1;
  uint64_t unanswered_ GUARDED_BY(mutex_) = 0;  // reads

  CallbackThread callbacks_;  // last: its thread ends before the rest goes
};

}  // namespace kvcake
