// A decorator that injects faults by seed, for tests of this room and of those above.
#pragma once

#include <memory>
#include <random>
#include <unordered_map>

#include "base/callback_thread.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "kv/page_copier.h"
#include "store/tier_decorator.h"

namespace kvcake {

// Probabilities in [0, 1]; a read meets at most one of the first six.
struct FaultyTierOptions {
  uint64_t seed = 1;
  double read_error = 0;    // kIo; the landing is scribbled on
  double read_corrupt = 0;  // kCorrupt; scribbled on, and the chunk is gone afterwards
  double read_flip = 0;     // the same for one bit
  double read_short = 0;    // the same for all after the first part
  double read_missing = 0;  // kNotFound, although Residency said otherwise
  double read_stall = 0;    // no answer until Cancel, ReleaseStalled or the destructor
  double read_delay = 0;    // the answer comes delay_min to delay_max late
  double write_error = 0;   // kIo
  double write_lost = 0;    // ok, but nothing is kept
  Seconds delay_min{0};
  Seconds delay_max{0.002};
  PageCopier* copier = nullptr;  // where landings are not the host's memory; outlives the tier
};

// Same contract as any tier. The sequence of faults depends on the seed and the order of calls
// only.
class FaultyTier : public TierDecorator {
 public:
  FaultyTier(std::unique_ptr<Tier> inner, FaultyTierOptions options);
  ~FaultyTier() override;

  ReadId Get(ReadRequest request) override;
  void Cancel(ReadId id) override;
  Status Put(const ChunkWrite& chunk) override;
  TierStats Stats() const override;

  // Stalled reads fail with kIo.
  void ReleaseStalled();
  uint64_t faults() const;  // injected so far, delays included

 private:
  enum class Fault { kNone, kError, kCorrupt, kFlip, kShort, kMissing, kStall, kDelay };
  struct Read {
    ReadRequest request;
    bool cancelled = false;
    Fault fault = Fault::kNone;
  };
  Fault DrawFaultLocked() REQUIRES(mutex_);
  void OnInnerDone(ReadId id, ReadResult result) EXCLUDES(mutex_);
  void SpoilLandingLocked(Fault fault, std::span<std::byte> landing) REQUIRES(mutex_);
  void SpoilLocked(Fault fault, std::span<std::byte> bytes) REQUIRES(mutex_);
  void FinishSoon(ReadId id, ReadResult result, TimePoint when);
  void FinishStalled(const Error& error) EXCLUDES(mutex_);

  // Constant after construction.
  const FaultyTierOptions options_;

  mutable Mutex mutex_;
  CondVar idle_;
  std::mt19937_64 random_ GUARDED_BY(mutex_);
  std::unordered_map<ReadId, Read> reads_ GUARDED_BY(mutex_);
  ReadId next_id_ GUARDED_BY(mutex_) = 1;
  uint64_t faults_ GUARDED_BY(mutex_) = 0;
  uint64_t reads_failed_ GUARDED_BY(mutex_) = 0;
  uint64_t writes_failed_ GUARDED_BY(mutex_) = 0;

  CallbackThread callbacks_;  // last: its thread ends before the rest goes
};

}  // namespace kvcake
