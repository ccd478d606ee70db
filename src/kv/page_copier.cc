#include "kv/page_copier.h"

#include <condition_variable>
#include <mutex>

namespace kvcake {

void CopyFromPage(PageCopier& copier, std::span<std::byte> staging,
                  std::span<const std::byte> page) {
  std::mutex mutex;
  std::condition_variable changed;
  bool copied = false;  // guarded by mutex
  copier.FromPage(staging, page, [&] {
    std::lock_guard lock(mutex);
    copied = true;
    changed.notify_one();  // under the lock: both are gone once the caller has it
  });
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return copied; });
}

}  // namespace kvcake
