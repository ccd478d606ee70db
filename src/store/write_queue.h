// Chunks on their way to the RAM tier and the stores.
#pragma once

#include <bitset>
#include <cstdint>
#include <map>
#include <optional>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "kv/page_pool.h"
#include "store/tier.h"

namespace kvcake {

// The tiers that a chunk is written to, by their numbers: the RAM tier's, and each store's.
inline constexpr size_t kToRam = 0;
constexpr size_t ToStore(size_t number) { return number + 1; }
using WriteTargets = std::bitset<16>;

struct WriteTarget {
  Tier* tier = nullptr;  // may be null: nothing is written then
  int threads = 0;       // that write to it; no more than it has use for
};

struct WriteQueueOptions {
  size_t pages_max = 4096;     // of chunks that wait or are being written, to whichever tier
  size_t claims = ToStore(0);  // the target that is told which chunks it is not given after all
  Seconds patience{60};        // with a tier that takes no write
};

// Counts of what one tier was to keep.
struct WriteCounts {
  uint64_t written = 0;
  uint64_t failed = 0;
  uint64_t dropped_full = 0;    // the queue was
  uint64_t dropped_wanted = 0;  // their pages were, for requests

  uint64_t dropped() const { return dropped_full + dropped_wanted; }
};

struct WriteQueueStats {
  std::vector<WriteCounts> of = {};  // by target
  uint64_t queued = 0;               // pages of chunks that wait, now
  uint64_t writing = 0;              // pages that tiers are reading, now
  uint64_t copied = 0;               // chunks being written of which a tier has its own copy, now
};

// A chunk is in the queue once, for one tier or more, until it is written or dropped, and holds one
// page until no tier needs it. A few threads for each tier begin to write what waits in order, so
// that a disk has work while one chunk is hashed, created or renamed. The queue is bounded: when it
// is full the chunk that is worth least is dropped and counted, never waited for. Chunks that wait
// for stores alone are worth less than those that wait for the RAM tier, which is rarely behind,
// and those for a later store, which is slower, less than those for one before it; then a chunk is
// worth more the later it is in its prompt: it takes longer to compute. Thread-safe.
class WriteQueue {
 public:
  struct Chunk {
    ChunkKey key, parent;
    int position = 0;  // in its prompt, in chunks
    NumericPath path = NumericPath::kUnknown;
    PageHandle page;  // published: it does not change any more; no other chunk's
    OwnerId owner = kNobody;
    bool awaited = false;  // by other processes, perhaps: it is written before those that are not
  };

  // By number; their tiers and the pool outlive it.
  WriteQueue(std::vector<WriteTarget> targets, PagePool& pool, WriteQueueOptions options);
  // Writes what is queued, for options.patience at most, or not at all where the last Flush gave
  // up, then stops; waits for writes that have begun.
  ~WriteQueue();
  WriteQueue(const WriteQueue&) = delete;
  WriteQueue& operator=(const WriteQueue&) = delete;

  // Queues it for those targets for which it neither waits nor is being written. Each has a tier
  // and threads.
  void Add(Chunk chunk, WriteTargets targets);
  // Drops the chunk that is worth least of those whose pages nobody else holds or is reading, and
  // counts it; false when there is none.
  bool GivePage();
  // Returns when everything queued so far is written, or has failed; false, with a warning, when
  // nothing has been written to one of the tiers for options.patience, or at `until`.
  bool Flush(TimePoint until = TimePoint::max());
  WriteQueueStats Stats() const;

 private:
  struct Item {
    Chunk chunk;
    uint64_t number = 0;                  // in the order of Add, what is awaited first
    WriteTargets waits = {};              // for threads of these
    WriteTargets writing = {};            // these are
    WriteTargets reading = {};            // these are, and need the page still
    std::optional<PageWorth> worth = {};  // its place in droppable_
  };
  struct Lane {
    std::map<uint64_t, Item*> waiting = {};  // by number
    size_t writing = 0;
    WriteCounts counts = {};

    bool done() const { return waiting.empty() && writing == 0; }
  };

  void Loop(size_t target) EXCLUDES(mutex_);
  int64_t FirstToken(const Chunk& chunk) const;  // its place in its prompt
  // Once they have written what is queued.
  void JoinThreads() EXCLUDES(mutex_);
  bool FlushLane(size_t target, TimePoint until) EXCLUDES(mutex_);
  Item& Begin(size_t target) REQUIRES(mutex_);
  void PageRead(Item& item, size_t target) REQUIRES(mutex_);
  void End(Item& item, size_t target, const Status& status) REQUIRES(mutex_);
  // What a chunk that was dropped leaves to be done without the mutex.
  struct Dropped {
    PageHandle page;                       // goes back
    std::optional<ChunkKey> claimed = {};  // which others need not wait for any more
  };
  // Drops an item and counts it.
  Dropped Drop(Item& item, uint64_t WriteCounts::*count) REQUIRES(mutex_);
  void Disclaim(const Dropped& dropped) EXCLUDES(mutex_);
  PageWorth WorthOf(const Item& item) const;
  // Brings what follows from an item's state up to date; it may be gone afterwards.
  void Settle(Item& item) REQUIRES(mutex_);

  // Constant after construction.
  const std::vector<WriteTarget> targets_;
  PagePool& pool_;
  const WriteQueueOptions options_;

  mutable Mutex mutex_;        // before the pool's
  std::vector<CondVar> work_;  // by target: something waits
  CondVar fewer_;              // something was written or dropped
  std::unordered_map<ChunkKey, Item> items_ GUARDED_BY(mutex_);
  std::vector<Lane> lanes_ GUARDED_BY(mutex_);
  std::map<PageWorth, Item*> droppable_ GUARDED_BY(mutex_);
  size_t pages_ GUARDED_BY(mutex_) = 0;  // items that have one
  uint64_t next_number_ GUARDED_BY(mutex_) = 0;
  bool gave_up_ GUARDED_BY(mutex_) = false;  // the last Flush
  TimePoint stop_at_ GUARDED_BY(mutex_){};   // when stop_: nothing more is begun
  bool stop_ GUARDED_BY(mutex_) = false;

  std::vector<std::thread> threads_;
};

}  // namespace kvcake
