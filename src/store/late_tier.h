// A decorator that lets some reads and writes answer late, as a device with hiccups does: for
// drills.
#pragma once

#include <functional>
#include <memory>
#include <random>
#include <unordered_set>

#include "base/callback_thread.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "store/tier_decorator.h"

namespace kvcake {

struct LateTierOptions {
  uint64_t seed = 1;
  double share = 0;        // of reads, in [0, 1], which are late
  Seconds delay{0};        // from the inner tier's answer to this one's
  double write_share = 0;  // of writes
  Seconds write_delay{0};  // before the inner tier is asked
};

// Which are late depends on the seed and the order of calls. A late answer comes no sooner for
// Cancel; the destructor gives all reads' at once.
class LateTier : public TierDecorator {
 public:
  LateTier(std::unique_ptr<Tier> inner, LateTierOptions options);
  ~LateTier() override;

  ReadId Get(ReadRequest request) override;
  void Cancel(ReadId id) override { ForwardCancel(id); }
  Status Put(const ChunkWrite& chunk) override;

 private:
  using Done = std::function<void(ReadResult)>;
  bool DrawLate(double share) REQUIRES(mutex_);
  void OnInnerDone(ReadId id, bool late, Done done, ReadResult result) EXCLUDES(mutex_);

  // Constant after construction.
  const LateTierOptions options_;

  Mutex mutex_;
  CondVar idle_;
  std::mt19937_64 random_ GUARDED_BY(mutex_);
  std::unordered_set<ReadId> asked_ GUARDED_BY(mutex_);  // the inner tier has not answered yet
  ReadId next_id_ GUARDED_BY(mutex_) = 1;

  CallbackThread callbacks_;  // last: it gives late answers before the rest goes
};

}  // namespace kvcake
