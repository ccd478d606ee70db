#include "engine/write_behind.h"

#include <spdlog/spdlog.h>

namespace kvcake {

WriteBehind::WriteBehind(Tier& tier, const PagePool& pool, size_t queue_max, int threads)
    : tier_(tier), pool_(pool), queue_max_(queue_max) {
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { Loop(); });
}

WriteBehind::~WriteBehind() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void WriteBehind::Enqueue(const ChunkKey& key, const ChunkKey& parent, NumericPath path,
                          PageHandle page) {
  {
    std::lock_guard lock(mutex_);
    if (queue_.size() + writing_ >= queue_max_) {
      if (stats_.dropped++ == 0) {
        spdlog::warn("the store {} is slower than new chunks come: not all of them are kept",
                     tier_.name());
      }
      return;
    }
    queue_.push_back({key, parent, path, std::move(page)});
  }
  changed_.notify_all();
}

void WriteBehind::DropQueued() {
  std::deque<Item> dropped;  // their pages go back outside the lock
  std::lock_guard lock(mutex_);
  stats_.dropped += queue_.size();
  dropped.swap(queue_);
}

void WriteBehind::Flush() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return queue_.empty() && writing_ == 0; });
}

WriteBehindStats WriteBehind::Stats() const {
  std::lock_guard lock(mutex_);
  return stats_;
}

void WriteBehind::Loop() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stop_ || !queue_.empty(); });
    if (queue_.empty()) return;
    Item item = std::move(queue_.front());
    queue_.pop_front();
    ++writing_;
    lock.unlock();
    const Status status =
        tier_.Put({.key = item.key,
                   .parent = item.parent,
                   .numeric_path = item.path,
                   .page = {pool_.Data(item.page.id()), pool_.layout().page_bytes()}});
    item.page.Reset();
    lock.lock();
    if (status) {
      ++stats_.written;
    } else if (stats_.failed++ == 0) {
      spdlog::warn("a chunk could not be kept in {}: {}", tier_.name(), status.error().message);
    }
    --writing_;
    changed_.notify_all();
  }
}

}  // namespace kvcake
