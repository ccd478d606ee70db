// The lock of who evicts from a store's directory. Others have it for a little while at a time.
#pragma once

#include <chrono>
#include <memory>
#include <thread>

#include "io/file_system.h"

namespace kvcake {

constexpr std::chrono::milliseconds kEvictLockPause{5};

// Asks by `try_lock`, as FileSystem::TryLock does, and so many times more, a pause apart, while
// others have it. Null when they still do.
template <typename TryLock>
Result<std::unique_ptr<FileLock>> AskForEvictLock(int more_tries, TryLock&& try_lock) {
  while (true) {
    Result<std::unique_ptr<FileLock>> lock = try_lock();
    if (!lock || *lock || more_tries-- <= 0) return lock;
    std::this_thread::sleep_for(kEvictLockPause);
  }
}

}  // namespace kvcake
