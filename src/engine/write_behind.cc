#include "engine/write_behind.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/check.h"

namespace kvcake {
namespace {

constexpr int kRamThreads = 2;  // one's copy begins while the other's ends

bool Holds(Tier& tier, const ChunkKey& key) { return tier.Residency({&key, 1})[0]; }

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
      seen_(options.seen_max) {
  CHECK(ram_ != nullptr || !stores_.empty());
  const double pages = options.queue_share * static_cast<double>(pool.pages());
  WriteQueueOptions queue{.queue_max = std::max<size_t>(1, static_cast<size_t>(pages)),
                          .threads = options.threads,
                          .patience = options.patience};
  if (!stores_.empty()) to_store_.emplace(*stores_[0], pool, queue);
  queue.threads = kRamThreads;
  if (ram_ != nullptr) to_ram_.emplace(*ram_, pool, queue);
  pool_.SetReclaimer([this] { return GivePage(); });
}

WriteBehind::~WriteBehind() { pool_.SetReclaimer(nullptr); }

void WriteBehind::Offer(const ChunkKey& key, const ChunkKey& parent, int position, NumericPath path,
                        PageHandle page) {
  if (to_ram_ && !Holds(*ram_, key)) to_ram_->Add({key, parent, position, path, page.Share()});
  if (to_store_ && IsForStore(key)) {
    to_store_->Add({key, parent, position, path, std::move(page)});
  }
}

// A page that waits for the store alone; else for the RAM tier, which is rarely behind; else for
// both.
bool WriteBehind::GivePage() {
  const auto alone = [this](PageId page) { return pool_.references(page) == 1; };
  if (to_store_ && to_store_->DropLeast(alone)) return true;
  if (!to_ram_) return false;
  if (to_ram_->DropLeast(alone)) return true;
  if (!to_store_) return false;
  const PageHandle page = to_store_->DropLeast(
      [this](PageId id) { return pool_.references(id) == 2 && to_ram_->Waits(id); });
  return page && to_ram_->DropLeast([&page](PageId id) { return id == page.id(); });
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

bool WriteBehind::Flush() {
  const bool ram = !to_ram_ || to_ram_->Flush();
  const bool store = !to_store_ || to_store_->Flush();
  return ram && store;
}

WriteBehindStats WriteBehind::Stats() const {
  WriteBehindStats stats;
  if (to_store_) {
    const WriteQueueStats store = to_store_->Stats();
    stats = {.written = store.written,
             .failed = store.failed,
             .dropped_full = store.dropped_full,
             .dropped_wanted = store.dropped_wanted,
             .queued = store.queued,
             .writing = store.writing};
  }
  if (to_ram_) {
    const WriteQueueStats ram = to_ram_->Stats();
    stats.queued += ram.queued;
    stats.writing += ram.writing;
  }
  MutexLock lock(mutex_);
  stats.not_admitted = not_admitted_;
  return stats;
}

}  // namespace kvcake
