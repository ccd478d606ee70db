// Keeps new chunks in the RAM tier and the stores without anybody waiting for it.
#pragma once

#include <cstdint>
#include <vector>

#include "base/mutex.h"
#include "store/seen_keys.h"
#include "store/store_writes.h"
#include "store/write_queue.h"

namespace kvcake {

struct WriteBehindOptions {
  double queue_share = 0.5;  // of the pool's pages, that wait to be written or are
  int threads = 12;      // that write to each store, at most; half of those pages can be dropped
  bool promote = false;  // copy what slower stores hold to those before them
  size_t claims = 0;     // the number of the store where what is computed is claimed
  size_t seen_max = 1ull << 16;  // keys remembered for kSecondUse
  Seconds patience{60};          // with a tier that takes no write
};

// Counts of what the stores were to keep together, and of what is under way.
struct WriteBehindStats : WriteCounts {
  WriteCounts ram = {};                  // of what the RAM tier was to keep
  std::vector<WriteCounts> stores = {};  // of what each store was to keep
  uint64_t not_admitted = 0;             // that no store held, and none's StoreWrites let in
  uint64_t queued = 0;   // pages of chunks that wait now, for the RAM tier or stores
  uint64_t writing = 0;  // pages that these read now, to write them
  uint64_t copied = 0;   // chunks that are being written now from a copy, and have no page

  uint64_t in_flight() const { return queued + writing + copied; }  // chunks
};

// Chunks go to the RAM tier, always, and to each store as its StoreWrites says. Each has threads of
// its own: one that is slow or fails keeps nothing from the others. When the pool has no page left,
// what waits gives its pages, one for each that is wanted. Thread-safe.
class WriteBehind {
 public:
  // Stores, the fastest first, a RAM tier, or both; they and the pool, whose reclaimer it is,
  // outlive it.
  WriteBehind(std::vector<WrittenStore> stores, PagePool& pool, WriteBehindOptions options = {},
              Tier* ram = nullptr);
  ~WriteBehind();
  WriteBehind(const WriteBehind&) = delete;
  WriteBehind& operator=(const WriteBehind&) = delete;

  // A chunk was used, the `position`th of its prompt: queues it for the RAM tier unless that holds
  // it; and for each store that admits it unless it, or one after it (and the chunk is not to be
  // promoted), is known to hold it. Its page is published: it does not change any more.
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
  // Which stores need not be written: they, or others for them, hold the chunk.
  std::vector<bool> Held(const ChunkKey& key) const;
  WriteTargets ForStores(const WriteQueue::Chunk& chunk) EXCLUDES(mutex_);

  // Constant after construction.
  const std::vector<WrittenStore> stores_;
  Tier* const ram_;  // may be null
  PagePool& pool_;
  const WriteBehindOptions options_;

  mutable Mutex mutex_;
  SeenKeys seen_ GUARDED_BY(mutex_);
  uint64_t not_admitted_ GUARDED_BY(mutex_) = 0;

  WriteQueue queue_;  // self-synchronised
};

}  // namespace kvcake
