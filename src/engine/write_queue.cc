#include "engine/write_queue.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

namespace kvcake {

WriteQueue::WriteQueue(Tier& tier, const PagePool& pool, WriteQueueOptions options)
    : tier_(tier), pool_(pool), options_(options) {
  for (int i = 0; i < options_.threads; ++i) threads_.emplace_back([this] { Loop(); });
}

WriteQueue::~WriteQueue() {
  {
    MutexLock lock(mutex_);
    stop_ = true;
  }
  changed_.NotifyAll();
  for (std::thread& thread : threads_) thread.join();
}

void WriteQueue::Add(Item item) {
  Item dropped;  // its page goes back outside the lock
  MutexLock lock(mutex_);
  queue_.push_back(std::move(item));
  if (queue_.size() + writing_ > options_.queue_max) {
    dropped = TakeLeast([](PageId) { return true; });
    if (stats_.dropped_full++ == 0) {
      spdlog::warn("the store {} is slower than new chunks come: not all of them are kept",
                   tier_.name());
    }
  }
  changed_.NotifyAll();
}

PageHandle WriteQueue::DropLeast(const PagePredicate& wanted) {
  MutexLock lock(mutex_);
  Item dropped = TakeLeast(wanted);
  changed_.NotifyAll();  // a Flush waits for the queue too
  if (dropped.page && stats_.dropped_wanted++ == 0) {
    spdlog::warn("pages of KV cache are short: chunks that wait to be written to {} give theirs",
                 tier_.name());
  }
  return std::move(dropped.page);
}

// The oldest of those that are worth as little.
WriteQueue::Item WriteQueue::TakeLeast(const PagePredicate& wanted) {
  auto least = queue_.end();
  for (auto it = queue_.begin(); it != queue_.end(); ++it) {
    if (least != queue_.end() && it->position >= least->position) continue;
    if (wanted(it->page.id())) least = it;
  }
  if (least == queue_.end()) return {};
  Item item = std::move(*least);
  queue_.erase(least);
  return item;
}

bool WriteQueue::Waits(PageId page) const {
  MutexLock lock(mutex_);
  return std::any_of(queue_.begin(), queue_.end(),
                     [page](const Item& item) { return item.page.id() == page; });
}

bool WriteQueue::Flush() {
  MutexLock lock(mutex_);
  while (!done()) {
    const uint64_t before = ended_;
    const TimePoint give_up = Clock::Real().Now() + options_.patience;
    while (!done() && ended_ == before && changed_.WaitUntil(mutex_, give_up)) {
    }
    if (done() || ended_ != before) continue;
    spdlog::warn("the store {} does not take what is written to it: {} chunks are not kept",
                 tier_.name(), queue_.size() + writing_);
    return false;
  }
  return true;
}

WriteQueueStats WriteQueue::Stats() const {
  MutexLock lock(mutex_);
  WriteQueueStats stats = stats_;
  stats.queued = queue_.size();
  stats.writing = writing_;
  return stats;
}

void WriteQueue::Loop() {
  MutexLock lock(mutex_);
  while (true) {
    while (!stop_ && queue_.empty()) changed_.Wait(mutex_);
    if (queue_.empty()) return;
    Item item = std::move(queue_.front());
    queue_.pop_front();
    ++writing_;
    lock.Unlock();
    const Status status =
        tier_.Put({.key = item.key,
                   .parent = item.parent,
                   .numeric_path = item.path,
                   .page = {pool_.Data(item.page.id()), pool_.layout().page_bytes()}});
    item.page.Reset();
    lock.Lock();
    if (status) {
      ++stats_.written;
    } else if (stats_.failed++ == 0) {
      spdlog::warn("a chunk could not be kept in {}: {}", tier_.name(), status.error().message);
    }
    --writing_;
    ++ended_;
    changed_.NotifyAll();
  }
}

}  // namespace kvcake
