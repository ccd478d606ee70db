#include "engine/write_behind.h"

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

WriteBehind::WriteBehind(std::vector<Tier*> stores, const PagePool& pool,
                         WriteBehindOptions options, Tier* ram)
    : stores_(std::move(stores)), ram_(ram), options_(options), seen_(options.seen_max) {
  CHECK(ram_ != nullptr || !stores_.empty());
  WriteQueueOptions queue{
      .queue_max = options.queue_max, .threads = options.threads, .patience = options.patience};
  if (!stores_.empty()) to_store_.emplace(*stores_[0], pool, queue);
  queue.threads = kRamThreads;
  if (ram_ != nullptr) to_ram_.emplace(*ram_, pool, queue);
}

void WriteBehind::Offer(const ChunkKey& key, const ChunkKey& parent, NumericPath path,
                        PageHandle page) {
  if (to_ram_ && !Holds(*ram_, key)) to_ram_->Add({key, parent, path, page.Share()});
  if (to_store_ && IsForStore(key)) to_store_->Add({key, parent, path, std::move(page)});
}

bool WriteBehind::IsForStore(const ChunkKey& key) {
  const size_t looked_at = options_.promote ? 1 : stores_.size();
  for (size_t i = 0; i < looked_at; ++i) {
    if (Holds(*stores_[i], key)) return false;
  }
  std::lock_guard lock(mutex_);
  const bool admitted = AdmitLocked(key);
  if (!admitted) ++not_admitted_;
  return admitted;
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
  if (to_store_ && to_store_->Drop() > 0) return;
  if (to_ram_) to_ram_->Drop();
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
             .dropped = store.dropped,
             .in_flight = store.in_flight};
  }
  if (to_ram_) stats.in_flight += to_ram_->Stats().in_flight;
  std::lock_guard lock(mutex_);
  stats.not_admitted = not_admitted_;
  return stats;
}

}  // namespace kvcake
