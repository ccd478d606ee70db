#include "io/io_queue.h"

#include <spdlog/spdlog.h>

#include <atomic>

namespace kvcake {

Result<std::unique_ptr<IoQueue>> NewIoQueue(const IoQueueOptions& options) {
  auto uring = NewUringQueue(options);
  if (uring) return uring;
  static std::atomic<bool> warned{false};
  if (!warned.exchange(true)) {
    spdlog::warn(
        "{}: falling back to blocking reads on helper threads, which is slower; allow io_uring "
        "(sysctl kernel.io_uring_disabled=0, the container's seccomp profile)",
        uring.error().message);
  }
  return NewBlockingQueue(options);
}

}  // namespace kvcake
