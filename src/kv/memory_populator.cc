#include "kv/memory_populator.h"

#include <algorithm>
#include <utility>

#include "base/cpu.h"
#include "base/large_pages.h"

namespace kvcake {

MemoryPopulator::MemoryPopulator(std::vector<std::span<std::byte>> segments, uint64_t ahead_bytes,
                                 Populate populate)
    : segments_(std::move(segments)),
      ahead_bytes_(ahead_bytes),
      populate_(std::move(populate)),
      thread_([this] { Loop(); }) {}

MemoryPopulator::~MemoryPopulator() {
  {
    MutexLock lock(mutex_);
    stop_ = true;
  }
  changed_.NotifyOne();
  thread_.join();
}

void MemoryPopulator::Used(uint64_t bytes) {
  MutexLock lock(mutex_);
  used_ = std::max(used_, bytes);
  if (next_ < used_ + ahead_bytes_) changed_.NotifyOne();
}

void MemoryPopulator::Loop() {
  RunInBackground();
  for (const std::span<std::byte> segment : segments_) {
    if (!PopulateSegment(segment)) break;
  }
  // Ends with its owner, which never does where memory ran out at a bad moment: to a sanitizer a
  // thread that has ended before is a leak.
  MutexLock lock(mutex_);
  next_ = UINT64_MAX;  // use wakes nobody any more
  while (!stop_) changed_.Wait(mutex_);
}

bool MemoryPopulator::PopulateSegment(std::span<std::byte> segment) {
  MutexLock lock(mutex_);
  while (!segment.empty()) {
    while (!stop_ && next_ >= used_ + ahead_bytes_) changed_.Wait(mutex_);
    if (stop_) return false;
    const uint64_t to_large_page =
        kLargePageBytes - reinterpret_cast<uintptr_t>(segment.data()) % kLargePageBytes;
    const auto piece = segment.first(std::min<uint64_t>(segment.size(), to_large_page));
    next_ += piece.size();
    if (next_ > used_) {
      lock.Unlock();
      if (!populate_(piece)) return false;
      lock.Lock();
    }
    segment = segment.subspan(piece.size());
  }
  return true;
}

}  // namespace kvcake
