// Looks for chunks that other processes have written.
#pragma once

#include <atomic>

#include "base/callback_thread.h"
#include "store/disk_context.h"
#include "store/tier.h"

namespace kvcake {

// One thread looks, and calls every `found`. Thread-safe. The destructor waits until all that was
// asked has been answered.
class DiskLooker {
 public:
  // Outlives it.
  explicit DiskLooker(DiskContext& context) : context_(context) {}

  // Tier::Look. Also false where the device does not answer.
  bool Look(LookRequest request);
  // Answers from now on that nothing is there, without looking.
  void Stop() { stop_ = true; }

 private:
  void LookFor(const LookRequest& request);
  bool IsOnDisk(const ChunkKey& key);

  DiskContext& context_;
  std::atomic<bool> stop_{false};
  CallbackThread thread_;  // last: it ends before the rest goes
};

}  // namespace kvcake
