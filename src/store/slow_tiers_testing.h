// Tiers in memory that a test makes wait.
#pragma once

#include <atomic>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "store/memory_tier.h"

namespace kvcake {

// Takes reads and answers none until it is told to.
class HungTier : public MemoryTier {
 public:
  using MemoryTier::MemoryTier;
  ~HungTier() override { Answer(); }
  ReadId Get(ReadRequest request) override {
    MutexLock lock(mutex_);
    reads_.push_back(std::move(request));
    return reads_.size();
  }
  void Cancel(ReadId) override {}
  // Fails all reads that wait.
  void Answer() {
    for (ReadRequest& read : TakeReads()) read.done({.status = Fail(ErrorCode::kIo, "no answer")});
  }
  // Lets the memory answer them.
  void Serve() {
    for (ReadRequest& read : TakeReads()) MemoryTier::Get(std::move(read));
  }

 private:
  std::vector<ReadRequest> TakeReads() {
    MutexLock lock(mutex_);
    return std::exchange(reads_, {});
  }

  Mutex mutex_;
  std::vector<ReadRequest> reads_ GUARDED_BY(mutex_);
};

// Writes wait while somebody holds the gate, and fail while they are told to.
class GatedTier : public MemoryTier {
 public:
  using MemoryTier::MemoryTier;
  Mutex gate;
  std::atomic<bool> fails{false};

  Status Put(const ChunkWrite& chunk) override {
    MutexLock lock(gate);
    if (fails) return Fail(ErrorCode::kIo, "no space left");
    return MemoryTier::Put(chunk);
  }
};

}  // namespace kvcake
