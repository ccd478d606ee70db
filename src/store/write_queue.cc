#include "store/write_queue.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace kvcake {
namespace {

constexpr uint64_t kNotAwaited = uint64_t{1} << 63;  // what they are numbered from

}  // namespace

WriteQueue::WriteQueue(std::vector<WriteTarget> targets, PagePool& pool, WriteQueueOptions options)
    : targets_(std::move(targets)),
      pool_(pool),
      options_(options),
      work_(targets_.size()),
      lanes_(targets_.size()) {
  CHECK(targets_.size() <= WriteTargets().size());
  try {
    for (size_t target = 0; target < targets_.size(); ++target) {
      const auto [tier, threads_max] = targets_[target];
      const int threads = tier == nullptr ? 0 : std::min(threads_max, tier->max_writes_in_flight());
      for (int i = 0; i < threads; ++i) threads_.emplace_back([this, target] { Loop(target); });
    }
  } catch (...) {  // no memory, or no thread, is left
    JoinThreads();
    throw;
  }
}

void WriteQueue::JoinThreads() {
  {
    MutexLock lock(mutex_);
    stop_ = true;
    stop_at_ = Clock::Real().Now() + (gave_up_ ? Seconds(0) : options_.patience);
  }
  for (CondVar& work : work_) work.NotifyAll();
  for (std::thread& thread : threads_) thread.join();
}

WriteQueue::~WriteQueue() {
  JoinThreads();
  // What nobody was there to write; the pool is to forget its worth.
  MutexLock lock(mutex_);
  if (!droppable_.empty()) {
    spdlog::warn("{} chunks are not kept: their stores take them too slowly", droppable_.size());
  }
  for (auto& [worth, item] : droppable_) pool_.SetSpare(item->chunk.page.id(), std::nullopt);
}

void WriteQueue::Add(Chunk chunk, WriteTargets targets) {
  Dropped dropped;  // goes back outside the lock, as does a page that is not needed
  CHECK(targets.any());
  MutexLock lock(mutex_);
  const auto [place, is_new] = items_.try_emplace(chunk.key);
  Item& item = place->second;
  targets &= ~(item.waits | item.writing);
  if (targets.none()) return;
  const bool takes_page = !item.chunk.page;
  if (takes_page) ++pages_;
  if (is_new) {
    item.chunk = std::move(chunk);
    item.number = next_number_++ + (item.chunk.awaited ? 0 : kNotAwaited);
  } else if (takes_page) {
    item.chunk.page = std::move(chunk.page);
  }
  item.waits |= targets;
  try {
    for (size_t target = 0; target < targets_.size(); ++target) {
      if (!targets[target]) continue;
      CHECK(targets_[target].tier != nullptr);
      lanes_[target].waiting.emplace(item.number, &item);
    }
    Settle(item);
  } catch (...) {  // no memory is left: it is as if the chunk had not come
    for (size_t target = 0; target < targets_.size(); ++target) {
      if (targets[target]) lanes_[target].waiting.erase(item.number);
    }
    item.waits &= ~targets;
    if (takes_page) {
      --pages_;
      dropped.page = std::move(item.chunk.page);
    }
    if (is_new) items_.erase(place);
    throw;
  }
  for (size_t target = 0; target < targets_.size(); ++target) {
    if (targets[target]) work_[target].NotifyOne();
  }
  if (pages_ > options_.pages_max && !droppable_.empty()) {
    dropped = Drop(*droppable_.begin()->second, &WriteCounts::dropped_full);
  }
  lock.Unlock();
  Disclaim(dropped);
}

bool WriteQueue::GivePage() {
  Dropped given;  // goes back outside the lock
  MutexLock lock(mutex_);
  const auto least = pool_.LeastSpare();
  if (!least) return false;
  const auto item = droppable_.find(*least);
  CHECK(item != droppable_.end());  // the pool has one reclaimer
  given = Drop(*item->second, &WriteCounts::dropped_wanted);
  lock.Unlock();
  Disclaim(given);
  return true;
}

void WriteQueue::Disclaim(const Dropped& dropped) {
  if (dropped.claimed) targets_[options_.claims].tier->Disclaim({&*dropped.claimed, 1});
}

WriteQueue::Dropped WriteQueue::Drop(Item& item, uint64_t WriteCounts::*count) {
  Dropped dropped{.page = item.chunk.page.Share()};
  if (item.waits[options_.claims]) dropped.claimed = item.chunk.key;
  WriteTargets told;
  for (size_t target = 0; target < targets_.size(); ++target) {
    if (!item.waits[target]) continue;
    Lane& lane = lanes_[target];
    lane.waiting.erase(item.number);
    told[target] = (lane.counts.*count)++ == 0;
  }
  item.waits.reset();
  Settle(item);
  fewer_.NotifyAll();
  for (size_t target = 0; target < targets_.size(); ++target) {  // last, as it may want memory
    if (!told[target]) continue;
    if (count == &WriteCounts::dropped_full) {
      spdlog::warn("the store {} is slower than new chunks come: not all of them are kept",
                   targets_[target].tier->name());
    } else {
      spdlog::warn("pages of KV cache are short: chunks that wait to be written to {} give theirs",
                   targets_[target].tier->name());
    }
  }
  return dropped;
}

void WriteQueue::Settle(Item& item) {
  PageHandle& page = item.chunk.page;
  if (item.waits.any() && item.reading.none()) {
    const PageWorth worth = WorthOf(item);
    if (item.worth == worth) return;
    std::map<PageWorth, Item*> made = {{worth, &item}};  // what wants memory, before any change
    pool_.SetSpare(page.id(), worth);
    if (item.worth) droppable_.erase(*item.worth);
    droppable_.merge(made);
    item.worth = worth;
  } else if (item.worth) {
    droppable_.erase(*item.worth);
    item.worth.reset();
    pool_.SetSpare(page.id(), std::nullopt);
  }
  if (item.waits.any() || item.reading.any()) return;
  if (page) --pages_;
  page.Reset();
  if (item.writing.none()) items_.erase(items_.find(item.chunk.key));
}

PageWorth WriteQueue::WorthOf(const Item& item) const {
  int kind = 0;
  for (size_t target = 0; target < targets_.size(); ++target) {
    kind = 2 * kind + (item.waits[target] ? 1 : 0);
  }
  return {.kind = kind, .position = item.chunk.position, .number = item.number};
}

bool WriteQueue::Flush(TimePoint until) {
  bool is_written = true;
  for (size_t target = 0; target < targets_.size(); ++target) {
    is_written = FlushLane(target, until) && is_written;
  }
  MutexLock lock(mutex_);
  gave_up_ = !is_written;
  return is_written;
}

bool WriteQueue::FlushLane(size_t target, TimePoint until) {
  MutexLock lock(mutex_);
  const Lane& lane = lanes_[target];
  while (!lane.done()) {
    const uint64_t before = lane.counts.written;  // failures are no progress
    const TimePoint now = Clock::Real().Now();
    const TimePoint give_up = std::min(until, now + options_.patience);
    while (!lane.done() && lane.counts.written == before && fewer_.WaitUntil(mutex_, give_up)) {
    }
    if (lane.done() || (lane.counts.written != before && now < until)) continue;
    spdlog::warn("the store {} does not take what is written to it: {} chunks may not be kept",
                 targets_[target].tier->name(), lane.waiting.size() + lane.writing);
    return false;
  }
  return true;
}

WriteQueueStats WriteQueue::Stats() const {
  MutexLock lock(mutex_);
  WriteQueueStats stats{.queued = droppable_.size(),
                        .writing = pages_ - droppable_.size(),
                        .copied = items_.size() - pages_};
  for (const Lane& lane : lanes_) stats.of.push_back(lane.counts);
  return stats;
}

int64_t WriteQueue::FirstToken(const Chunk& chunk) const {
  return static_cast<int64_t>(chunk.position) * pool_.layout().chunk_tokens;
}

void WriteQueue::Loop(size_t target) {
  MutexLock lock(mutex_);
  const Lane& lane = lanes_[target];
  while (true) {
    while (!stop_ && lane.waiting.empty()) work_[target].Wait(mutex_);
    if (lane.waiting.empty() || (stop_ && Clock::Real().Now() >= stop_at_)) return;
    Item& item = Begin(target);
    // Nobody changes these while it is being written, nor its page until that has been read.
    const Chunk& chunk = item.chunk;
    const std::byte* const page = pool_.Data(chunk.page.id());
    lock.Unlock();
    const Status status = targets_[target].tier->Put({.key = chunk.key,
                                                      .parent = chunk.parent,
                                                      .numeric_path = chunk.path,
                                                      .page = {page, pool_.layout().page_bytes()},
                                                      .owner = chunk.owner,
                                                      .page_read =
                                                          [&] {
                                                            MutexLock lock(mutex_);
                                                            PageRead(item, target);
                                                          },
                                                      .position = FirstToken(chunk)});
    lock.Lock();
    End(item, target, status);
  }
}

WriteQueue::Item& WriteQueue::Begin(size_t target) {
  Lane& lane = lanes_[target];
  Item& item = *lane.waiting.begin()->second;
  lane.waiting.erase(lane.waiting.begin());
  ++lane.writing;
  item.waits.reset(target);
  item.writing.set(target);
  item.reading.set(target);
  Settle(item);
  return item;
}

void WriteQueue::PageRead(Item& item, size_t target) {
  item.reading.reset(target);
  Settle(item);
}

void WriteQueue::End(Item& item, size_t target, const Status& status) {
  Lane& lane = lanes_[target];
  if (status) {
    ++lane.counts.written;
  } else if (lane.counts.failed++ == 0) {
    spdlog::warn("a chunk could not be kept in {}: {}", targets_[target].tier->name(),
                 status.error().message);
  }
  --lane.writing;
  item.writing.reset(target);
  item.reading.reset(target);
  Settle(item);
  fewer_.NotifyAll();
}

}  // namespace kvcake
