#include "store/write_behind.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/check.h"

namespace kvcake {
namespace {

constexpr int kRamThreads = 2;  // one's copy begins while the other's ends

// Counts both tiers together, as they wait for the same pages.
size_t PagesMax(const PagePool& pool, double share) {
  return std::max<size_t>(1, static_cast<size_t>(share * static_cast<double>(pool.pages())));
}

// Pages that are being written cannot be had when somebody wants one, those that wait can.
int ThreadsMax(const PagePool& pool, const WriteBehindOptions& options, size_t written) {
  const size_t pages = PagesMax(pool, options.queue_share) / std::max<size_t>(written, 1);
  return static_cast<int>(std::clamp<size_t>(pages / 2, 1, options.threads));
}

std::vector<WriteTarget> TargetsOf(Tier* ram, const std::vector<WrittenStore>& stores,
                                   const PagePool& pool, const WriteBehindOptions& options) {
  const auto is_written = [](const WrittenStore& store) {
    return store.writes != StoreWrites::kNever;
  };
  const int threads =
      ThreadsMax(pool, options, static_cast<size_t>(std::ranges::count_if(stores, is_written)));
  std::vector<WriteTarget> targets = {{ram, kRamThreads}};
  for (const WrittenStore& store : stores) {
    targets.push_back({store.tier, is_written(store) ? threads : 0});
  }
  return targets;
}

}  // namespace

WriteBehind::WriteBehind(std::vector<WrittenStore> stores, PagePool& pool,
                         WriteBehindOptions options, Tier* ram)
    : stores_(std::move(stores)),
      ram_(ram),
      pool_(pool),
      options_(options),
      seen_(options.seen_max),
      queue_(TargetsOf(ram, stores_, pool, options), pool,
             {.pages_max = PagesMax(pool, options.queue_share),
              .claims = ToStore(options.claims),
              .patience = options.patience}) {
  CHECK(ram_ != nullptr || !stores_.empty());
  CHECK(stores_.empty() || options_.claims < stores_.size());
  pool_.SetReclaimer([this] { return queue_.GivePage(); });
}

WriteBehind::~WriteBehind() { pool_.SetReclaimer(nullptr); }

void WriteBehind::Offer(WriteQueue::Chunk chunk) {
  WriteTargets targets = ForStores(chunk);
  targets[kToRam] = ram_ != nullptr && !ram_->Keeps(chunk.key);
  // Others need not wait for what is not written.
  if (chunk.awaited && !stores_.empty() && !targets[ToStore(options_.claims)]) {
    stores_[options_.claims].tier->Disclaim({&chunk.key, 1});
  }
  if (targets.any()) queue_.Add(std::move(chunk), targets);
}

std::vector<bool> WriteBehind::Held(const ChunkKey& key) const {
  std::vector<bool> held(stores_.size());
  for (size_t i = stores_.size(); i-- > 0;) {
    const bool is_later_held = i + 1 < stores_.size() && held[i + 1];
    held[i] = (is_later_held && !options_.promote) || stores_[i].tier->Keeps(key);
  }
  return held;
}

WriteTargets WriteBehind::ForStores(const WriteQueue::Chunk& chunk) {
  WriteTargets targets;
  const std::vector<bool> held = Held(chunk.key);
  MutexLock lock(mutex_);
  std::optional<bool> seen;  // for all stores, as a key that is added has been seen
  for (size_t i = 0; i < stores_.size(); ++i) {
    if (held[i]) continue;
    switch (stores_[i].writes) {
      case StoreWrites::kAlways:
        targets.set(ToStore(i));
        break;
      case StoreWrites::kSecondUse:
        // What others await is offered once more when its prompt is done: that is its use.
        if (chunk.awaited) break;
        if (!seen) seen = seen_.Add(chunk.key);
        targets.set(ToStore(i), *seen);
        break;
      case StoreWrites::kNever:
        break;
    }
  }
  const bool is_new = !stores_.empty() && std::ranges::find(held, true) == held.end();
  if (is_new && targets.none() && !chunk.awaited) ++not_admitted_;
  return targets;
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
  WriteBehindStats stats;
  stats.ram = queue.of[kToRam];
  for (size_t i = 0; i < stores_.size(); ++i) {
    const WriteCounts& counts = stats.stores.emplace_back(queue.of[ToStore(i)]);
    stats.written += counts.written;
    stats.failed += counts.failed;
    stats.dropped_full += counts.dropped_full;
    stats.dropped_wanted += counts.dropped_wanted;
  }
  stats.queued = queue.queued;
  stats.writing = queue.writing;
  stats.copied = queue.copied;
  MutexLock lock(mutex_);
  stats.not_admitted = not_admitted_;
  return stats;
}

}  // namespace kvcake
