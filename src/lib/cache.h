// What a kvcake_cache is: pages, stores, a Restorer and writes behind, wired as the engine's are,
// with the numbers that callers know restorations and chunks by.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/status.h"
#include "cake/cost_file.h"
#include "cake/restorer.h"
#include "kv/page_pool.h"
#include "lib/async_puts.h"
#include "lib/open_keys.h"
#include "store/open_store.h"
#include "store/write_behind.h"

namespace kvcake {

struct CacheOptions {
  std::string name_space;
  int layers = 0;
  int chunk_tokens = 128;
  uint64_t slab_bytes = 0;
  std::vector<StoreOptions> stores = {};
  uint64_t memory_bytes = 1ull << 30;
  double write_queue_share = 0.5;
  Seconds store_ttl{0};
  Seconds stall_timeout{30};
  std::string device = {};  // empty: costs are not kept
};

struct CacheRequest {
  std::vector<ChunkKey> keys;
  ChunkKey parent;
  Policy policy = Policy::kCake;
  int slice_chunks_max = 4;
};

// A slice that is claimed, or why there is none.
struct CacheTurn {
  ComputeTurn::Kind kind = ComputeTurn::Kind::kDone;
  Claim claim{};
  Seconds wait{0};
};

struct CacheProgress {
  RestoreProgress restored;
  int chunks = 0;
  Claim slice{};  // empty: none
};

struct HeldChunk {
  uint64_t number = 0;
  const std::byte* data = nullptr;
  uint64_t stride = 0;
};

struct CacheWrite {
  ChunkKey key, parent;
  int position = 0;
  const std::byte* data = nullptr;
  uint64_t stride = 0;
};

// A chunk in pieces, which stay where they are until it has been put.
struct AsyncWrite {
  ChunkKey key, parent;
  int position = 0;
  std::vector<const std::byte*> parts = {};  // of equally many bytes, slab after slab
};

struct CacheStats {
  PagePoolStats memory;
  RestorerStats restorer;
  TierStats stores = {};  // of all together
  WriteBehindStats writes = {};
  uint64_t restorations = 0;
  uint64_t acquired = 0;
  uint64_t puts_dropped = 0;  // for want of memory
};

// Whether each key is in memory, and whether a store is known to hold it.
struct HeldIn {
  std::vector<bool> memory, stores;
};

// Thread-safe. What its callers can get wrong is an error; every call is refused with kNotFound for
// a number that was never given out or has ended.
class Cache {
 public:
  static Result<std::unique_ptr<Cache>> Open(const CacheOptions& options);
  // Nothing is acquired, no call under way, and it is settled.
  ~Cache();
  // Ends what is open, and keeps what was learnt. False where memory ran out in the midst of that,
  // or of a restoration's call before: it is in no state to be destroyed.
  bool Settle();

  const KvLayout& layout() const { return pool_->layout(); }
  uint64_t slab_bytes() const { return options_.slab_bytes; }
  ChunkKey Root(std::string_view salt) const { return SaltedRoot(identity_, salt); }
  // Asks stores for what they are not known to hold, for `patience` at most.
  HeldIn Lookup(std::span<const ChunkKey> keys, Seconds patience);

  Result<uint64_t> Begin(CacheRequest request);
  Status End(uint64_t restoration);
  Result<CacheProgress> Progress(uint64_t restoration);
  // Both are kResourceExhausted while a slice is claimed.
  Result<CacheTurn> ClaimPlanned(uint64_t restoration, const ComputeBudget& budget);
  Result<CacheTurn> Claim(uint64_t restoration, int chunks);
  Status Computed(uint64_t restoration, int chunks, Seconds took);

  Result<HeldChunk> Acquire(uint64_t restoration, int chunk);
  Status Release(uint64_t chunk);
  uint64_t acquired() const;

  Status Put(const CacheWrite& write);
  // Puts those that nobody holds, on a thread of its own or on that which waits for it.
  void PutAsync(std::vector<AsyncWrite> writes) { async_puts_.Add(std::move(writes)); }
  // Returns when nothing of them is read any more.
  PutCounts WaitForPuts() { return async_puts_.Wait(); }
  Status Flush();
  // Sleeps until there have been other events than `seen`: how many there have been.
  uint64_t Wait(uint64_t seen, Seconds patience);
  // What computing so many tokens after others took the caller.
  void Learn(int prefix_tokens, int tokens, Seconds took) {
    cost_.Add(prefix_tokens, tokens, took);
  }
  CacheStats Stats() const;

 private:
  struct Opened {
    std::shared_ptr<Restoration> restoration;
    std::vector<ChunkKey> keys;
    int slice_chunks_max = 0;
    kvcake::Claim slice{};  // empty: none
  };

  explicit Cache(const CacheOptions& options);
  Status OpenStores();
  void Wire();
  Status CheckNotLost() const REQUIRES(mutex_);
  Result<Opened*> Find(uint64_t restoration) REQUIRES(mutex_);
  Result<Opened*> FindUnclaimed(uint64_t restoration) REQUIRES(mutex_);
  CacheTurn Note(Opened& opened, const ComputeTurn& turn) REQUIRES(mutex_);
  void Finish(Opened& opened) REQUIRES(mutex_);
  std::string CostPathOf(size_t store) const;
  // Keeps a chunk whose slabs `copy` writes where it is told to.
  Status Put(const ChunkKey& key, const ChunkKey& parent, int position,
             const std::function<void(int layer, std::byte* slab)>& copy);
  PutOutcome PutIfNew(const AsyncWrite& write);
  // Whether a store keeps it already.
  bool IsKept(const ChunkKey& key);

  // Constant after Open.
  const CacheOptions options_;
  const KvIdentity identity_;
  std::unique_ptr<PagePool> pool_;
  std::vector<std::unique_ptr<Tier>> stores_;
  ComputeCost cost_;
  std::unique_ptr<Restorer> restorer_;
  std::unique_ptr<WriteBehind> writes_;      // null without a store
  std::unique_ptr<CostKeeper> cost_keeper_;  // null where nothing is kept

  std::atomic<uint64_t> puts_dropped_ = 0;  // counts only

  // Also keeps the calls of restorations one after another, as the Restorer wants them.
  mutable Mutex mutex_;
  bool lost_ GUARDED_BY(mutex_) = false;  // what the Restorer knows may be half of a change
  uint64_t next_number_ GUARDED_BY(mutex_) = 1;
  OpenKeys keys_ GUARDED_BY(mutex_);
  std::unordered_map<uint64_t, Opened> restorations_ GUARDED_BY(mutex_);
  std::unordered_map<uint64_t, PageHandle> chunks_ GUARDED_BY(mutex_);

  // Last: it ends first. There from the beginning, as its thread runs where Open's caller may.
  AsyncPuts async_puts_{[this](const AsyncWrite& write) { return PutIfNew(write); }};
};

}  // namespace kvcake
