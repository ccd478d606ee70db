// Restores prompts by computing their chunks from the front while loading them from the back.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "cake/claims.h"
#include "cake/cost_model.h"
#include "cake/load_order.h"
#include "cake/planner.h"
#include "cake/report.h"
#include "kv/page_pool.h"
#include "store/store_look.h"
#include "store/tier.h"

namespace kvcake {

struct RestoreRequest {
  std::vector<ChunkKey> keys;  // the prompt's full chunks
  ChunkKey root;               // the parent of keys[0]
  int chunk_tokens = 128;
  int prompt_tokens = 0;  // the rest after the full chunks is the engine's to compute
  Policy policy = Policy::kCake;
  int slice_chunks_max = 4;
  // Chunks [0, split) are computed, the rest loaded (computed where no tier has it). For tests.
  std::optional<int> forced_split = {};
  // Slices are computed into memory that is not the pool's: they draw no pages, nobody waits for
  // them, and nobody else gets what they make.
  bool private_slices = false;
  // What is computed is written to the tier of Options::claims at once where IsClaimed says so.
  bool keeps_chunks = false;
};

// Single flight among the processes that share a tier: chunks are claimed there before they are
// computed, and a prompt whose next chunk another process has claimed waits for it, as long as that
// is not much slower than computing it.
struct ClaimOptions {
  int tier = -1;  // the store that gets all new chunks; -1: nothing is claimed
  // Only for prompts that take at least this long: for less it is not worth the trouble.
  Seconds prompt_min{0.2};
  // What a prompt may lose by waiting: so many slices' time, and this share of what it has computed
  // itself. What others have made for it pays its waiting back.
  double lost_slices = 1.25;
  double lost_share = 0.02;
  // Once more as much, when it has computed so many slices and another process is ahead of it
  // still.
  double proven_slices = 2;
  // How long to wait for the tier's answer, or a fifth of a chunk's compute time if that is less.
  Seconds answer_max{50e-3};
  // A claim lasts as long, or four times as long as computing a slice if that is more.
  Seconds lasts_min{10};
};

struct ComputeTurn {
  enum class Kind {
    kSlice,    // compute `claim`, then call Computed
    kWait,     // until the Restorer's next event, or wait_until; then ask again
    kStarved,  // a slice from claim.first on is wanted, and the budget is 0: ask in the next step
    kDone,     // every full chunk is resident
  };
  Kind kind = Kind::kDone;
  Claim claim{};
  TimePoint wait_until{};
  bool lacks_pages = false;  // kWait: for want of a free page
};

// What the engine can give to the next slice.
struct ComputeBudget {
  int chunks = 0;
  // Expected share of this and future steps, each of which lasts as long as a full one; 0 means
  // load only.
  double share = 1;
  // Nobody else's tokens are in the step: what it takes is this restoration's doing.
  bool alone = true;
};

// What the compute lane is wanted for, for who shares it among restorations.
struct ComputeNeed {
  // Chunks from the first missing one on that only compute can make: no tier has them, or may be
  // asked. Loading cannot make up for a delay.
  int fresh_chunks = 0;
  double fresh_s = 0;  // to compute these; 0: unknown
  // Since a chunk became resident or a slice began; 0 where compute may not help.
  Seconds idle{0};
  double rank = 0;  // by Options::load_order: the lowest first
};

// Tokens of whole chunks that are resident by now, by where they came from.
struct RestoreProgress {
  int prompt_tokens = 0;
  int computed = 0;
  int loaded = 0;
  int reused = 0;
  bool mixed_path = false;  // another numeric path than ours made some
  int front = 0;            // the first chunk that is not resident
  int back = 0;             // all chunks from here on are resident
  int loading = 0;          // chunks, here or elsewhere
  double predicted_s = 0;   // as RestoreReport has it
};

// One prompt being restored. Thread-safe; turns, slices and the end are the engine thread's.
class Restoration {
 public:
  virtual ~Restoration() = default;  // as Abandon

  // What the compute lane should do now; a slice of at most budget.chunks. A kSlice has claimed its
  // chunks and drawn their pages; until it is Computed, further turns are waits.
  virtual ComputeTurn NextTurn(const ComputeBudget& budget) = 0;
  // With private_slices: claims up to so many chunks from the first missing one whatever the
  // planner thinks of it, a kSlice; kWait while a slice is claimed already.
  virtual ComputeTurn ClaimFront(int chunks) = 0;
  // The pages of chunks [0, chunks), which are resident or in the current claim.
  virtual std::vector<PageId> PageIds(int chunks) const = 0;
  virtual ComputeNeed Need() const = 0;
  // The claim's KV is in its pages: makes them visible to everyone. With private_slices the claim
  // may be the slice's beginning, or nothing of it: the rest is given back.
  virtual void Computed(const Claim& claim) = 0;
  // Whether this process has told others that it computes the chunk.
  virtual bool IsClaimed(int chunk) const = 0;
  // A reference to a chunk that is in memory; empty where it is not, or not in the pool's.
  virtual PageHandle PageOf(int chunk) const = 0;
  // The request was cancelled or preempted: gives every claim and page back. Restorations of the
  // same document go on where this one was. Nothing may be called afterwards but Report and
  // Progress.
  virtual void Abandon() = 0;

  virtual RestoreProgress Progress() const = 0;
  virtual bool done() const = 0;
  // When done; ends the restoration like Abandon.
  virtual PageTable TakePages() = 0;
  // Takes what follows the full chunks for computed. tail: what that took, or nothing to have it
  // estimated.
  virtual RestoreReport Report(std::optional<Seconds> tail = {}) const = 0;
};

struct RestorerStats {
  int reads_in_flight = 0;  // that have not come back, late ones included
  // Those among them that nobody waits for any more. Each holds a page until its tier calls back.
  int late_reads = 0;
  Seconds planning{0};    // spent on deciding what is loaded and computed, by all threads
  Seconds mutex_wait{0};  // until they could
};

// Engine-wide. Tiers are called without any lock held. The load lanes have no thread: they go on
// whenever a read completes or a turn is asked for.
class Restorer {
 public:
  struct Options {
    // Reads queued at a tier: at least this many (a short queue keeps late decisions possible),
    // more while the tier's latency hides its rate, never more than the second or the tier's limit.
    int reads_ahead = 4;
    int reads_ahead_max = 32;
    // A tier from which nothing has come for this long (or 8 times as long as expected) is given
    // up until something does; its reads count as failed.
    Seconds stall_timeout{30};
    Seconds probe_interval{60};  // until a tier too slow to be worth reading is tried again
    int failures_max = 4;        // in a row: then a restoration stops asking that tier
    // A plan is kept for this long for each chunk of all the prompts that are being restored,
    // unless what it rests on changes: planning takes the same share of time however many there
    // are.
    Seconds plan_interval{2e-6};
    LoadOrder load_order = LoadOrder::kSrpt;  // which restoration is read for first
    double load_aging = 0.25;  // kSrpt: seconds of remaining time that one of age is worth
    // Compute starts after this long, or a part of a chunk's compute time if that is less
    // (PlannerOptions::blind_wait_chunks), whether or not the tiers have said what they hold.
    Seconds look_wait_max{5e-3};
    // That compute: what a tier's decoder works on one of them, all of them are later by a share.
    int cores = 1;
    // What compute writes; chunks of another path, loaded or found in memory, are counted.
    NumericPath numeric_path = NumericPath::kUnknown;
    std::string lossy = {};  // RestoreReport's
    PlannerOptions planner = {};
    ClaimOptions claims = {};
  };

  // Waits for reads that are still in flight. Restorations have ended before, and cancelled theirs.
  virtual ~Restorer() = default;

  // Engine thread. Adopts what is in memory, starts the load lanes with what the tiers are known to
  // hold, and asks them what else they do. Returns at once.
  virtual std::shared_ptr<Restoration> Open(RestoreRequest request) = 0;
  // Which chunks are in memory or, with `stored`, known to be held by a tier.
  virtual std::vector<bool> Known(std::span<const ChunkKey> keys, bool stored) const = 0;
  // Whether each is in memory or held by a tier; asks tiers for what they are not known to hold,
  // and waits for `patience` at most.
  virtual StoreLook Look(std::span<const ChunkKey> keys, Seconds patience) const = 0;
  // Engine thread: sleeps until something was published, failed or returned since the last call
  // returned, Wake was called, or the (real) clock reaches the deadline.
  virtual void WaitForEvent(TimePoint deadline) = 0;
  // Any thread, several at once: sleeps until there have been other events than `seen`, or the
  // (real) clock reaches the deadline; returns how many there have been.
  virtual uint64_t EventsAfter(uint64_t seen, TimePoint deadline) = 0;
  // Any thread: ends the engine's WaitForEvent, this one or the next.
  virtual void Wake() = 0;
  virtual RestorerStats Stats() const = 0;
  // What has been learnt about a tier, for the engine to keep beside it.
  virtual nlohmann::json TierCostToJson(int tier) const = 0;
  [[nodiscard]] virtual Status TierCostFromJson(int tier, const nlohmann::json& json) = 0;
};

// Borrows all of them until it is destroyed.
std::unique_ptr<Restorer> NewRestorer(PagePool& pool, std::vector<Tier*> tiers, ComputeCost& cost,
                                      const Clock& clock, const Restorer::Options& options = {});

}  // namespace kvcake
