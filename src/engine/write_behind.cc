#include "engine/write_behind.h"

#include <spdlog/spdlog.h>

#include <chrono>
#include <nlohmann/json.hpp>

#include "base/check.h"

namespace kvcake {

std::string_view StoreWritesName(StoreWrites writes) {
  switch (writes) {
    case StoreWrites::kAlways:
      return "always";
    case StoreWrites::kSecondUse:
      return "second-use";
    case StoreWrites::kNever:
      return "never";
  }
  return "always";
}

std::optional<StoreWrites> StoreWritesFromName(std::string_view name) {
  for (StoreWrites writes : {StoreWrites::kAlways, StoreWrites::kSecondUse, StoreWrites::kNever}) {
    if (StoreWritesName(writes) == name) return writes;
  }
  return std::nullopt;
}

WriteBehind::WriteBehind(std::vector<Tier*> tiers, const PagePool& pool, WriteBehindOptions options)
    : tiers_(std::move(tiers)), pool_(pool), options_(options), seen_(options.seen_max) {
  CHECK(!tiers_.empty());
  for (int i = 0; i < options_.threads; ++i) threads_.emplace_back([this] { Loop(); });
}

WriteBehind::~WriteBehind() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void WriteBehind::Offer(const ChunkKey& key, const ChunkKey& parent, NumericPath path,
                        PageHandle page) {
  const std::span one(&key, 1);
  const size_t looked_at = options_.promote ? 1 : tiers_.size();
  for (size_t t = 0; t < looked_at; ++t) {
    if (tiers_[t]->Residency(one)[0]) return;
  }
  {
    std::lock_guard lock(mutex_);
    if (!AdmitLocked(key)) {
      ++stats_.not_admitted;
      return;
    }
    if (queue_.size() + writing_ >= options_.queue_max) {
      if (stats_.dropped++ == 0) {
        spdlog::warn("the store {} is slower than new chunks come: not all of them are kept",
                     tiers_[0]->name());
      }
      return;
    }
    queue_.push_back({key, parent, path, std::move(page)});
  }
  changed_.notify_all();
}

bool WriteBehind::AdmitLocked(const ChunkKey& key) {
  switch (options_.writes) {
    case StoreWrites::kAlways:
      return true;
    case StoreWrites::kSecondUse:
      return seen_.Add(key);
    case StoreWrites::kNever:
      return false;
  }
  return true;
}

nlohmann::json WriteBehind::SeenToJson() const {
  std::lock_guard lock(mutex_);
  return seen_.ToJson();
}

Status WriteBehind::SeenFromJson(const nlohmann::json& json) {
  std::lock_guard lock(mutex_);
  return seen_.FromJson(json);
}

void WriteBehind::DropQueued() {
  std::deque<Item> dropped;  // their pages go back outside the lock
  std::lock_guard lock(mutex_);
  stats_.dropped += queue_.size();
  dropped.swap(queue_);
  changed_.notify_all();  // a Flush waits for the queue too
}

bool WriteBehind::Flush() {
  const auto patience = std::chrono::duration_cast<std::chrono::milliseconds>(options_.patience);
  std::unique_lock lock(mutex_);
  const auto done = [this] { return queue_.empty() && writing_ == 0; };
  while (!done()) {
    const uint64_t before = ended_;
    if (changed_.wait_for(lock, patience, [&] { return done() || ended_ != before; })) continue;
    spdlog::warn("the store {} does not take what is written to it: {} chunks are not kept",
                 tiers_[0]->name(), queue_.size() + writing_);
    return false;
  }
  return true;
}

WriteBehindStats WriteBehind::Stats() const {
  std::lock_guard lock(mutex_);
  WriteBehindStats stats = stats_;
  stats.in_flight = queue_.size() + writing_;
  return stats;
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
        tiers_[0]->Put({.key = item.key,
                        .parent = item.parent,
                        .numeric_path = item.path,
                        .page = {pool_.Data(item.page.id()), pool_.layout().page_bytes()}});
    item.page.Reset();
    lock.lock();
    if (status) {
      ++stats_.written;
    } else if (stats_.failed++ == 0) {
      spdlog::warn("a chunk could not be kept in {}: {}", tiers_[0]->name(),
                   status.error().message);
    }
    --writing_;
    ++ended_;
    changed_.notify_all();
  }
}

}  // namespace kvcake
