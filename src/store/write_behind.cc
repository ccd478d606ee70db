#include "store/write_behind.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/check.h"

namespace kvcake {
namespace {

constexpr int kRamThreads = 2;  // one's copy begins while the other's ends

// Counts both tiers together, as they wait for the same pages.
size_t PagesMax(const PagePool& pool, double share) {
  return std::max<size_t>(1, static_cast<size_t>(share * static_cast<double>(pool.pages())));
}

bool Holds(Tier& tier, const ChunkKey& key) { return tier.Residency({&key, 1})[0]; }

// Pages that are being written cannot be had when somebody wants one, those that wait can.
int ThreadsMax(const PagePool& pool, const WriteBehindOptions& options) {
  const size_t pages = PagesMax(pool, options.queue_share);
  return static_cast<int>(std::clamp<size_t>(pages / 2, 1, options.threads));
}

}  // namespace

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

WriteBehind::WriteBehind(std::vector<Tier*> stores, PagePool& pool, WriteBehindOptions options,
                         Tier* ram)
    : stores_(std::move(stores)),
      ram_(ram),
      pool_(pool),
      options_(options),
      seen_(options.seen_max),
      queue_({stores_.empty() ? nullptr : stores_[0], ram}, pool,
             {.pages_max = PagesMax(pool, options.queue_share),
              .threads = {ThreadsMax(pool, options), kRamThreads},
              .patience = options.patience}) {
  CHECK(ram_ != nullptr || !stores_.empty());
  pool_.SetReclaimer([this] { return queue_.GivePage(); });
}

WriteBehind::~WriteBehind() { pool_.SetReclaimer(nullptr); }

void WriteBehind::Offer(WriteQueue::Chunk chunk) {
  WriteTargets targets;
  targets[kToRam] = ram_ != nullptr && !Holds(*ram_, chunk.key);
  targets[kToStore] = !stores_.empty() && IsForStore(chunk.key);
  // Others need not wait for what is not written.
  if (chunk.awaited && !targets[kToStore] && !stores_.empty()) {
    stores_[0]->Disclaim({&chunk.key, 1});
  }
  if (targets.any()) queue_.Add(std::move(chunk), targets);
}

bool WriteBehind::IsForStore(const ChunkKey& key) {
  const size_t looked_at = options_.promote ? 1 : stores_.size();
  for (size_t i = 0; i < looked_at; ++i) {
    if (Holds(*stores_[i], key)) return false;
  }
  MutexLock lock(mutex_);
  const bool admitted = Admits(key);
  if (!admitted) ++not_admitted_;
  return admitted;
}

bool WriteBehind::Admits(const ChunkKey& key) {
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
  MutexLock lock(mutex_);
  return seen_.ToJson();
}

Status WriteBehind::SeenFromJson(const nlohmann::json& json) {
  MutexLock lock(mutex_);
  return seen_.FromJson(json);
}

bool WriteBehind::Flush(TimePoint until) { return queue_.Flush(until); }

WriteBehindStats WriteBehind::Stats() const {
  const WriteQueueStats queue = queue_.Stats();
  WriteBehindStats stats{queue.of[kToStore]};
  stats.ram = queue.of[kToRam];
  stats.queued = queue.queued;
  stats.writing = queue.writing;
  stats.copied = queue.copied;
  MutexLock lock(mutex_);
  stats.not_admitted = not_admitted_;
  return stats;
}

}  // namespace kvcake
