// Looks for chunks that other processes have written.
#pragma once

#include <atomic>
#include <memory>

#include "base/worker_threads.h"
#include "store/disk_context.h"
#include "store/tier.h"

namespace kvcake {

// DiskTierOptions::call_threads at most look, and call `found`. Thread-safe. The destructor waits
// until all that was asked has been answered.
class DiskLooker {
 public:
  // Outlives it.
  explicit DiskLooker(DiskContext& context)
      : context_(context), threads_(context.options.call_threads) {}
  ~DiskLooker() { Stop(); }

  // Tier::Look. Also false where the device does not answer.
  bool Look(LookRequest request);
  // Answers from now on that nothing is there, without looking.
  void Stop() { stop_ = true; }

 private:
  class Search;

  void Begin(const std::shared_ptr<Search>& search);
  void LookForNext(Search& search, size_t i);
  bool IsOnDisk(const ChunkKey& key);

  DiskContext& context_;
  std::atomic<bool> stop_{false};
  WorkerThreads threads_;  // last: they end before the rest goes
};

}  // namespace kvcake
