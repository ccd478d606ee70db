// Keeps new chunks in the RAM tier and the store without anybody waiting for it.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <string_view>
#include <vector>

#include "engine/seen_keys.h"
#include "engine/write_queue.h"

namespace kvcake {

// Which chunks are worth writing: all; those that come up for the second time; none.
enum class StoreWrites { kAlways, kSecondUse, kNever };
std::string_view StoreWritesName(StoreWrites writes);  // "always", "second-use", "never"
std::optional<StoreWrites> StoreWritesFromName(std::string_view name);

struct WriteBehindOptions {
  size_t queue_max = 4096;  // chunks waiting to be written to a tier
  int threads = 8;          // that write to the store
  StoreWrites writes = StoreWrites::kAlways;
  bool promote = false;          // copy what another store holds to the first
  size_t seen_max = 1ull << 16;  // keys remembered for kSecondUse
  Seconds patience{60};          // with a tier whose writes do not return
};

// Of what the stores were to keep, but for in_flight.
struct WriteBehindStats {
  uint64_t written = 0;
  uint64_t failed = 0;
  uint64_t dropped = 0;       // the queue was full
  uint64_t not_admitted = 0;  // by WriteBehindOptions::writes
  uint64_t in_flight = 0;     // queued or being written now, to either
};

// Chunks go to the RAM tier, always, and to the first store, as the options say. Each has a queue
// and threads of its own: a store that is slow or fails keeps nothing from the RAM tier, nor the
// reverse. Thread-safe.
class WriteBehind {
 public:
  // Stores, the fastest first, a RAM tier, or both; they and the pool outlive it.
  WriteBehind(std::vector<Tier*> stores, const PagePool& pool, WriteBehindOptions options = {},
              Tier* ram = nullptr);

  // A chunk was used: queues it for the RAM tier unless that holds it; and for the first store
  // unless a store is known to hold it already (and it is not to be promoted), or it is not
  // admitted. `page` is published: it does not change any more.
  void Offer(const ChunkKey& key, const ChunkKey& parent, NumericPath path, PageHandle page);
  // Gives up what has not begun to be written to the store, and counts it as dropped; where nothing
  // waits for that, what waits for the RAM tier, which is rarely behind.
  void DropQueued();
  // Returns when everything queued so far is written, or has failed; false, with a warning, when
  // nothing has been for options.patience.
  bool Flush();
  WriteBehindStats Stats() const;

  // What kSecondUse goes by, to be kept beside the store.
  nlohmann::json SeenToJson() const;
  [[nodiscard]] Status SeenFromJson(const nlohmann::json& json);

 private:
  bool IsForStore(const ChunkKey& key);
  bool AdmitLocked(const ChunkKey& key);

  // Constant after construction.
  const std::vector<Tier*> stores_;
  Tier* const ram_;  // may be null
  const WriteBehindOptions options_;

  mutable std::mutex mutex_;
  // Guarded by mutex_.
  SeenKeys seen_;
  uint64_t not_admitted_ = 0;

  // Self-synchronised; where there is such a tier.
  std::optional<WriteQueue> to_ram_, to_store_;
};

}  // namespace kvcake
