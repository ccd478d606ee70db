// Keeps new chunks in the RAM tier and the store without anybody waiting for it.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "base/mutex.h"
#include "store/seen_keys.h"
#include "store/write_queue.h"

namespace kvcake {

// Which chunks are worth writing: all; those that come up for the second time; none.
enum class StoreWrites { kAlways, kSecondUse, kNever };
std::string_view StoreWritesName(StoreWrites writes);  // "always", "second-use", "never"
std::optional<StoreWrites> StoreWritesFromName(std::string_view name);

struct WriteBehindOptions {
  double queue_share = 0.5;  // of the pool's pages, that wait to be written or are
  int threads = 12;          // that write to the store, at most; half of those pages can be dropped
  StoreWrites writes = StoreWrites::kAlways;
  bool promote = false;          // copy what another store holds to the first
  size_t seen_max = 1ull << 16;  // keys remembered for kSecondUse
  Seconds patience{60};          // with a tier whose writes do not return
};

// Counts of what the stores were to keep, and of what is under way.
struct WriteBehindStats : WriteCounts {
  WriteCounts ram = {};       // of what the RAM tier was to keep
  uint64_t not_admitted = 0;  // WriteBehindOptions::writes kept them from the stores
  uint64_t queued = 0;        // pages of chunks that wait now, for the RAM tier, the store or both
  uint64_t writing = 0;       // pages that either reads now, to write them
  uint64_t copied = 0;        // chunks that are being written now from a copy, and have no page

  uint64_t in_flight() const { return queued + writing + copied; }  // chunks
};

// Chunks go to the RAM tier, always, and to the first store, as the options say. Each has threads
// of its own: a store that is slow or fails keeps nothing from the RAM tier, nor the reverse. When
// the pool has no page left, what waits gives its pages, one for each that is wanted. Thread-safe.
class WriteBehind {
 public:
  // Stores, the fastest first, a RAM tier, or both; they and the pool, whose reclaimer it is,
  // outlive it.
  WriteBehind(std::vector<Tier*> stores, PagePool& pool, WriteBehindOptions options = {},
              Tier* ram = nullptr);
  ~WriteBehind();
  WriteBehind(const WriteBehind&) = delete;
  WriteBehind& operator=(const WriteBehind&) = delete;

  // A chunk was used, the `position`th of its prompt: queues it for the RAM tier unless that holds
  // it; and for the first store unless a store is known to hold it already (and it is not to be
  // promoted), or it is not admitted. Its page is published: it does not change any more.
  void Offer(WriteQueue::Chunk chunk);
  // Returns when everything queued so far is written, or has failed; false, with a warning, when
  // nothing has been for options.patience, or at `until`. What it gave up is not written at the
  // end, either.
  bool Flush(TimePoint until = TimePoint::max());
  WriteBehindStats Stats() const;

  // What kSecondUse goes by, to be kept beside the store.
  nlohmann::json SeenToJson() const;
  [[nodiscard]] Status SeenFromJson(const nlohmann::json& json);

 private:
  bool IsForStore(const ChunkKey& key) EXCLUDES(mutex_);
  bool Admits(const ChunkKey& key) REQUIRES(mutex_);

  // Constant after construction.
  const std::vector<Tier*> stores_;
  Tier* const ram_;  // may be null
  PagePool& pool_;
  const WriteBehindOptions options_;

  mutable Mutex mutex_;
  SeenKeys seen_ GUARDED_BY(mutex_);
  uint64_t not_admitted_ GUARDED_BY(mutex_) = 0;

  WriteQueue queue_;  // self-synchronised
};

}  // namespace kvcake
