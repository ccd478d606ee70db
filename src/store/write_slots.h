// Staging memory for chunks on their way into a tier: a fixed number of slots.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "base/mutex.h"

namespace kvcake {

// Thread-safe. The memory is its owner's.
class WriteSlots {
 public:
  using Slot = std::span<std::byte>;

  // Waits until a slot is free; it is its caller's until it is given back.
  Slot Draw() EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    while (free_.empty()) changed_.Wait(mutex_);
    const Slot slot = free_.back();
    free_.pop_back();
    return slot;
  }
  // Also how it is given memory in the first place.
  void GiveBack(Slot slot) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    free_.push_back(slot);
    changed_.NotifyOne();
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::vector<Slot> free_ GUARDED_BY(mutex_);
};

}  // namespace kvcake
