// Keeps new chunks in the store without anybody waiting for it.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <string_view>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "engine/seen_keys.h"
#include "kv/page_pool.h"
#include "store/tier.h"

namespace kvcake {

// Which chunks are worth writing: all; those that come up for the second time; none.
enum class StoreWrites { kAlways, kSecondUse, kNever };
std::string_view StoreWritesName(StoreWrites writes);  // "always", "second-use", "never"
std::optional<StoreWrites> StoreWritesFromName(std::string_view name);

struct WriteBehindOptions {
  size_t queue_max = 4096;  // chunks waiting to be written
  int threads = 8;
  StoreWrites writes = StoreWrites::kAlways;
  bool promote = false;          // copy what another tier holds to the first
  size_t seen_max = 1ull << 16;  // keys remembered for kSecondUse
  Seconds patience{60};          // with a tier whose writes do not return
};

struct WriteBehindStats {
  uint64_t written = 0;
  uint64_t failed = 0;
  uint64_t dropped = 0;       // the queue was full
  uint64_t not_admitted = 0;  // by WriteBehindOptions::writes
  uint64_t in_flight = 0;     // queued or being written now
};

// Chunks go to the first tier. A few threads begin to write queued pages in order, so that the disk
// has work while one chunk is hashed, created or renamed; a queued page stays referenced until it
// is written. The queue is bounded: when it is full a chunk is dropped and counted, never waited
// for. Thread-safe.
class WriteBehind {
 public:
  // At least one tier, the fastest first; they and the pool outlive it.
  WriteBehind(std::vector<Tier*> tiers, const PagePool& pool, WriteBehindOptions options = {});
  // Writes what is queued, then stops; waits for writes that have begun, whose pages they hold.
  ~WriteBehind();
  WriteBehind(const WriteBehind&) = delete;
  WriteBehind& operator=(const WriteBehind&) = delete;

  // A chunk was used: queues it unless a tier is known to hold it already (and it is not to be
  // promoted), or it is not admitted. `page` is published: it does not change any more.
  void Offer(const ChunkKey& key, const ChunkKey& parent, NumericPath path, PageHandle page);
  // Gives up what has not begun to be written, and counts it as dropped.
  void DropQueued();
  // Returns when everything queued so far is written, or has failed; false, with a warning, when
  // nothing has been for options.patience.
  bool Flush();
  WriteBehindStats Stats() const;

  // What kSecondUse goes by, to be kept beside the store.
  nlohmann::json SeenToJson() const;
  [[nodiscard]] Status SeenFromJson(const nlohmann::json& json);

 private:
  struct Item {
    ChunkKey key, parent;
    NumericPath path;
    PageHandle page;
  };
  void Loop();
  bool AdmitLocked(const ChunkKey& key);

  // Constant after construction.
  const std::vector<Tier*> tiers_;
  const PagePool& pool_;
  const WriteBehindOptions options_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  std::deque<Item> queue_;
  size_t writing_ = 0;  // items taken from the queue and not written yet
  uint64_t ended_ = 0;  // of them, written or failed
  SeenKeys seen_;
  WriteBehindStats stats_;
  bool stop_ = false;

  std::vector<std::thread> threads_;
};

}  // namespace kvcake
