#include "kv/page_copier.h"

#include <condition_variable>
#include <mutex>
#include <utility>

namespace kvcake {

void AwaitCopies(int64_t count,
                 const std::function<void(int64_t copy, std::function<void()> done)>& start) {
  std::mutex mutex;
  std::condition_variable changed;
  int64_t left = count;  // guarded by mutex
  const auto done = [&] {
    std::lock_guard lock(mutex);
    if (--left == 0) changed.notify_one();  // under the lock: all is gone once the caller has it
  };
  for (int64_t copy = 0; copy < count; ++copy) start(copy, done);
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return left == 0; });
}

void CopyFromPage(PageCopier& copier, std::span<std::byte> staging,
                  std::span<const std::byte> page) {
  AwaitCopies(1, [&](int64_t, std::function<void()> done) {
    copier.FromPage(staging, page, std::move(done));
  });
}

}  // namespace kvcake
