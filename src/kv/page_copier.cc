#include "kv/page_copier.h"

#include <utility>

#include "base/mutex.h"

namespace kvcake {

void AwaitCopies(int64_t count,
                 const std::function<void(int64_t copy, std::function<void()> done)>& start) {
  struct {
    Mutex mutex;
    CondVar changed;
    int64_t left GUARDED_BY(mutex);
  } copies{.mutex = {}, .changed = {}, .left = count};
  const auto done = [&] {
    MutexLock lock(copies.mutex);
    // Under the lock: all is gone once the caller has it.
    if (--copies.left == 0) copies.changed.NotifyOne();
  };
  for (int64_t copy = 0; copy < count; ++copy) start(copy, done);
  MutexLock lock(copies.mutex);
  while (copies.left > 0) copies.changed.Wait(copies.mutex);
}

void CopyFromPage(PageCopier& copier, std::span<std::byte> staging,
                  std::span<const std::byte> page) {
  AwaitCopies(1, [&](int64_t, std::function<void()> done) {
    copier.FromPage(staging, page, std::move(done));
  });
}

}  // namespace kvcake
