#include "engine/write_queue.h"

#include <spdlog/spdlog.h>

#include <chrono>
#include <utility>

namespace kvcake {

WriteQueue::WriteQueue(Tier& tier, const PagePool& pool, WriteQueueOptions options)
    : tier_(tier), pool_(pool), options_(options) {
  for (int i = 0; i < options_.threads; ++i) threads_.emplace_back([this] { Loop(); });
}

WriteQueue::~WriteQueue() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void WriteQueue::Add(Item item) {
  {
    std::lock_guard lock(mutex_);
    if (queue_.size() + writing_ >= options_.queue_max) {
      if (stats_.dropped++ == 0) {
        spdlog::warn("the store {} is slower than new chunks come: not all of them are kept",
                     tier_.name());
      }
      return;
    }
    queue_.push_back(std::move(item));
  }
  changed_.notify_all();
}

size_t WriteQueue::Drop() {
  std::deque<Item> dropped;  // their pages go back outside the lock
  std::lock_guard lock(mutex_);
  stats_.dropped += queue_.size();
  dropped.swap(queue_);
  changed_.notify_all();  // a Flush waits for the queue too
  return dropped.size();
}

bool WriteQueue::Flush() {
  const auto patience = std::chrono::duration_cast<std::chrono::milliseconds>(options_.patience);
  std::unique_lock lock(mutex_);
  const auto done = [this] { return queue_.empty() && writing_ == 0; };
  while (!done()) {
    const uint64_t before = ended_;
    if (changed_.wait_for(lock, patience, [&] { return done() || ended_ != before; })) continue;
    spdlog::warn("the store {} does not take what is written to it: {} chunks are not kept",
                 tier_.name(), queue_.size() + writing_);
    return false;
  }
  return true;
}

WriteQueueStats WriteQueue::Stats() const {
  std::lock_guard lock(mutex_);
  WriteQueueStats stats = stats_;
  stats.in_flight = queue_.size() + writing_;
  return stats;
}

void WriteQueue::Loop() {
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
    ++ended_;
    changed_.notify_all();
  }
}

}  // namespace kvcake
