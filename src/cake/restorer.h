// Restores prompts by computing their chunks from the front while loading them from the back.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "cake/claims.h"
#include "cake/cost_model.h"
#include "cake/load_order.h"
#include "cake/planner.h"
#include "cake/report.h"
#include "kv/page_pool.h"
#include "store/tier.h"

namespace kvcake {

struct RestoreRequest {
  std::vector<ChunkKey> keys;  // of the prompt's full chunks
  ChunkKey root;               // the parent of keys[0]
  int chunk_tokens = 128;
  int prompt_tokens = 0;  // the rest after the full chunks is the engine's to compute
  Policy policy = Policy::kCake;
  int slice_chunks_max = 4;
  // Chunks [0, split) are computed, the rest loaded (computed where no tier has it). For tests.
  std::optional<int> forced_split;
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
};

// What the engine can give to the next slice.
struct ComputeBudget {
  int chunks = 0;
  // Of a step, in which others compute the rest: it lasts as long as a full one. What to count on
  // for the steps to come; 0: nothing, and whatever can be loaded is.
  double share = 1;
};

// What the compute lane is wanted for, for who shares it among restorations.
struct ComputeNeed {
  // Chunks from the first missing one on that only compute can make: no tier has them, or may be
  // asked. Loading cannot make up for a delay.
  int fresh_chunks = 0;
  double fresh_s = 0;  // that these take; 0: nothing is known of it yet
  // Since something became resident or was begun to be computed; 0 where compute may not help.
  Seconds idle{0};
  double rank = 0;  // of Options::load_order: the lowest first
};

// Tokens of whole chunks that are resident by now, by where they came from.
struct RestoreProgress {
  int prompt_tokens = 0;
  int computed = 0;
  int loaded = 0;
  int reused = 0;
  bool mixed_path = false;  // another numeric path than ours made some
};

class Restoration;

// Engine-wide. One mutex guards all boards and the table of what is in flight; tiers are called
// outside it. The load lane has no thread: it goes on whenever a read completes or a turn is asked
// for. Pool, tiers, cost and clock outlive it; it outlives its Restorations.
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
    // A tier too slow to be worth reading is tried again after this long.
    Seconds probe_interval{60};
    // A restoration stops asking a tier whose reads fail for it this often in a row, until one ends
    // well.
    int failures_max = 4;
    // Which restoration is read for first.
    LoadOrder load_order = LoadOrder::kSrpt;
    // Of kSrpt: what a second of age is worth (LoadRank). One that has waited for 4 times what it
    // takes to load is not overtaken any more.
    double load_aging = 0.25;
    // Compute starts after this long, or a part of a chunk's compute time if that is less
    // (PlannerOptions::blind_wait_chunks), whether or not the tiers have said what they hold.
    Seconds look_wait_max{5e-3};
    // What compute writes; chunks of another path, loaded or found in memory, are counted.
    NumericPath numeric_path = NumericPath::kUnknown;
    PlannerOptions planner = {};
  };

  Restorer(PagePool& pool, std::vector<Tier*> tiers, ComputeCost& cost, const Clock& clock)
      : Restorer(pool, std::move(tiers), cost, clock, Options()) {}
  Restorer(PagePool& pool, std::vector<Tier*> tiers, ComputeCost& cost, const Clock& clock,
           Options options);
  // Cancels reads that are still in flight and waits for them.
  ~Restorer();
  Restorer(const Restorer&) = delete;
  Restorer& operator=(const Restorer&) = delete;

  // Engine thread. Adopts what is in memory, starts the load lane with what the tiers are known to
  // hold, and asks them what else they do. Returns at once.
  std::shared_ptr<Restoration> Open(RestoreRequest request);

  // Which chunks are in memory or, with `stored`, known to be held by a tier.
  std::vector<bool> Known(std::span<const ChunkKey> keys, bool stored) const;

  // Engine thread: sleeps until something was published, failed or returned since the last call
  // returned, Wake was called, or the (real) clock reaches the deadline.
  void WaitForEvent(TimePoint deadline);
  // Any thread: ends the engine's WaitForEvent, this one or the next.
  void Wake();

  // Reads that have not come back, those nobody waits for any more included.
  int ReadsInFlight() const;
  TierEstimate Estimate(int tier) const;

  // CHECKs what must hold whenever nobody is in a call: every chunk has one owner, and boards,
  // owners and reads agree. For tests; O(open chunks).
  void CheckInvariants() const;

  // What has been learnt about a tier, for the engine to keep beside it.
  nlohmann::json TierCostToJson(int tier) const;
  [[nodiscard]] Status TierCostFromJson(int tier, const nlohmann::json& json);

 private:
  friend class Restoration;

  // A read in flight. Its page is the tier's until the tier calls back, whoever owns the chunk now.
  struct Read {
    Restoration* owner = nullptr;  // null: nobody; the result is late
    Claim claim;
    ChunkKey key;
    int tier = 0;
    PageHandle page;
    TimePoint start{};
    double eta_s = 0;          // from now; kept by UpdateEtas
    std::optional<ReadId> id;  // known once Get has returned
    bool cancel = false;       // asked for before the id was known
  };
  struct TierState {
    Tier* tier = nullptr;
    TierCost cost;
    std::vector<uint64_t> queue;       // numbers of reads in flight, in order of issue
    std::optional<TimePoint> stalled;  // given up since
    int looks = 0;                     // under way
    TimePoint look_progress{};         // the last answer, or the start of the first look since
    double drain_s = 0;                // kept by UpdateEtas
  };
  // Chunks that a tier is asked for on behalf of a restoration, which may have gone by the answer.
  struct Look {
    uint64_t restoration = 0;  // its serial
    int tier = 0;
    std::vector<int> chunks = {};
    std::vector<ChunkKey> keys = {};
  };
  // Calls to tiers, collected under the mutex and made outside it.
  struct Calls {
    std::vector<std::pair<int, ReadRequest>> gets;  // tier
    std::vector<uint64_t> get_reads;                // the read's number, for each of gets
    std::vector<std::pair<int, ReadId>> cancels;    // tier
    std::vector<Look> looks;
    std::vector<std::pair<int, std::vector<ChunkKey>>> unpins;  // tier
  };

  // All with mutex_ held.
  void Claimed(Restoration& owner, const Claim& claim);
  void Disown(Restoration& owner, const Claim& claim);
  void PublishChunk(int chunk, const ChunkKey& key, const PageHandle& page, Restoration* except);
  void TakeOver(Restoration& taker, int chunk, Calls& calls);
  void CancelRead(uint64_t number, Calls& calls);
  void Close(Restoration& restoration, Calls& calls);
  void CheckStalls(Calls& calls);
  void Pump(Calls& calls);
  bool PumpOne(int tier, Calls& calls);
  bool Usable(const TierState& tier) const;
  uint32_t UsableTiers(const Restoration& restoration) const;  // bit t: it may ask tier t
  bool HasRoom(const TierState& tier) const;
  std::optional<Claim> ClaimLoad(Restoration& restoration, int tier);
  std::optional<Claim> ClaimProbe(Restoration& restoration, int tier, const Plan& plan);
  bool TakeFromSlower(int tier, Calls& calls);
  bool StartRead(Restoration& restoration, int tier, const Claim& claim, Calls& calls);
  void UpdateEtas();
  const PlanInput& View(const Restoration& restoration, int budget_chunks);
  TierView ViewTier(const Restoration& restoration, int tier) const;
  double Rank(const Restoration& restoration, TimePoint now) const;
  void UpdateRanks();
  static bool SameDocument(const Restoration& a, const Restoration& b);
  int Documents() const;
  void LookFor(Restoration& restoration, Calls& calls);
  void EndLook(Restoration* restoration, int tier);
  Restoration* Find(uint64_t serial) const;
  void FailRead(Read& read, std::string_view why);
  void Event();
  // Unlocks, makes the calls, and locks again.
  void Make(Calls& calls, std::unique_lock<std::mutex>& lock);
  void StartLook(Look look);
  void OnRead(uint64_t number, ReadResult result);
  bool OnFound(const Look& look, size_t first, const std::vector<bool>& held);

  // Constant after construction.
  PagePool& pool_;
  ComputeCost& cost_;
  const Clock& clock_;
  const Options options_;

  mutable std::mutex mutex_;
  std::condition_variable event_;  // for the engine thread
  std::condition_variable idle_;   // for the destructor
  // Guarded by mutex_.
  std::vector<TierState> tiers_;
  std::vector<Restoration*> open_;                     // in order of arrival
  std::unordered_map<ChunkKey, Restoration*> owners_;  // of every chunk computed or loaded now
  std::unordered_map<uint64_t, Read> reads_;
  uint64_t next_read_ = 1;
  uint64_t next_serial_ = 1;
  int looks_ = 0;  // under way, those of restorations that have gone included
  uint64_t events_ = 0, events_seen_ = 0;
  int calling_ = 0;       // threads between the mutex and a tier
  int documents_ = 1;     // being restored: they share the links
  bool no_page_ = false;  // the last Pump could have read more with more free pages
  // Scratch.
  PlanInput input_;
  std::vector<Restoration*> ranked_;
};

// One prompt. Methods are thread-safe; compute turns are the engine thread's.
class Restoration {
 public:
  ~Restoration();
  Restoration(const Restoration&) = delete;
  Restoration& operator=(const Restoration&) = delete;

  // What the compute lane should do now; a slice of at most budget.chunks. A kSlice has claimed its
  // chunks and drawn their pages; until it is Computed, further turns are waits.
  ComputeTurn NextTurn(const ComputeBudget& budget);
  // The pages of chunks [0, chunks), which are resident or in the current claim.
  std::vector<PageId> PageIds(int chunks) const;
  ComputeNeed Need() const;
  // The claim's KV is in its pages: makes them visible to everyone, and adds the time it took
  // (0: not known) to the cost model.
  void Computed(const Claim& claim, Seconds took);
  // The request was cancelled or preempted: gives every claim and page back. Restorations of the
  // same document go on where this one was. Nothing may be called afterwards but Report.
  void Abandon();

  RestoreProgress Progress() const;
  bool done() const;
  // When done; ends the restoration like Abandon.
  PageTable TakePages();

  // tail: what the prompt's last part took, or nothing to have it estimated.
  RestoreReport Report(std::optional<Seconds> tail = {}) const;

 private:
  friend class Restorer;
  Restoration(Restorer& restorer, RestoreRequest request);
  ComputeTurn Turn(const ComputeBudget& budget, Restorer::Calls& calls);
  ComputeTurn StartSlice(const Plan& plan, Restorer::Calls& calls);
  void NoteTurn(const Plan& plan);
  void NoteSlice();
  bool Wants(int chunk, const ChunkKey& key) const;
  void Loaded(int chunk, std::string_view tier, PageHandle page);
  double At(TimePoint t) const { return (t - opened_).count(); }
  void Adopt(int chunk, PageHandle page);
  void NotePath(int chunk);
  bool Trusts(int tier) const { return failures_[tier] < restorer_.options_.failures_max; }
  bool WantsLoads() const { return request_.policy != Policy::kCompute; }
  bool MayLoad() const { return WantsLoads() && !claims_.done(); }
  void NotePlan(const Plan& plan);
  std::optional<int> FixedSplit() const;
  double Bound(std::optional<Seconds> tail) const;
  bool AwaitsLooks() const;

  // Constant after construction.
  Restorer& restorer_;
  const RestoreRequest request_;
  const TimePoint opened_;

  // Guarded by restorer_.mutex_.
  uint64_t serial_ = 0;                        // in the order of opening
  uint32_t looking_ = 0;                       // bit t: tier t has not said all it holds
  TimePoint look_until_;                       // what is not known by then is not waited for
  std::vector<std::vector<ChunkKey>> pinned_;  // at each tier
  Claims claims_;
  PageTable pages_;  // of resident chunks and of the current claim
  // As found by Open, for the bound; what others made since is resident.
  std::vector<ChunkView> initial_;
  std::optional<Claim> computing_;
  TimePoint slice_start_{};
  double slice_predicted_s_ = 0;
  double share_ = 1;  // of a step, as the engine said last
  bool waiting_ = false;
  bool closed_ = false;
  TimePoint progressed_;         // when something became resident or a slice began
  uint64_t last_read_ = 0;       // the number of the last one begun for it; 0: none
  double rank_ = 0;              // as of the last UpdateRanks: all by the same clock
  std::vector<int> loads_left_;  // of each tier: chunks that the last plan leaves to it
  int first_loaded_ = -1;
  int first_mixed_;            // of the chunks whose path is not ours; size() if there is none
  std::vector<int> failures_;  // of each tier, in a row
  RestoreReport report_;
};

}  // namespace kvcake
