// Restorations in simulated time: the real Restorer, planner and page pool on a fake clock, with
// tiers and a compute lane that only take the time they are told to. Deterministic.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <unordered_set>
#include <vector>

#include "cake/compute_share.h"
#include "cake/prefill_order.h"
#include "cake/restorer.h"
#include "cake/speed_trace.h"
#include "store/pins.h"

namespace kvcake {

struct SimTierOptions {
  std::string name = "disk";
  double chunk_s = 0.01;     // the link's time for one chunk
  double latency_s = 0;      // before it, hidden by other reads in flight
  double jitter = 0;         // each chunk's time varies by up to this share
  double fail_share = 0;     // of reads: end with kCorrupt after their time
  double missing_share = 0;  // of reads: end with kNotFound at once
  double stall_share = 0;    // of reads: never end until cancelled
  double hang_share = 0;     // of reads: never end, cancelled or not, until ReleaseHung
  // Of cancelled reads; the others end at once.
  double cancel_slow_share = 0;     // end as cancelled, but in their own time
  double cancel_ignored_share = 0;  // go on as if nothing had been said
  // What it holds is told only when asked, in two parts, the last of them after this long;
  // infinity: never, until ReleaseHung.
  double look_s = 0;
  int reads_max = 32;
  SpeedTrace speed = {};  // of the link, from the beginning of each Run
};

// One link that serves reads in order. Delivers a chunk by writing its key into the landing, and
// leaves garbage there when it fails. Calls back only from Advance.
class SimTier : public Tier {
 public:
  SimTier(SimTierOptions options, FakeClock& clock, uint64_t seed);

  void Hold(const ChunkKey& key) { held_.insert(key); }
  SimTierOptions& options() { return options_; }  // what applies to reads from now on
  // Hung reads and looks end at the next Advance: some reads fail, some deliver after all.
  void ReleaseHung();
  uint64_t gets() const { return gets_; }
  // When something happens next; TimePoint::max() if nothing will.
  TimePoint NextEvent() const;
  // Calls back all that is due by the clock's now.
  void Advance();
  // `speed` is counted from now.
  void StartTrace() { trace_start_ = clock_.Now(); }

  std::string_view name() const override { return options_.name; }
  int max_reads_in_flight() const override { return options_.reads_max; }
  uint64_t max_read_bytes_in_flight() const override {
    return std::numeric_limits<uint64_t>::max();
  }
  std::vector<bool> Residency(std::span<const ChunkKey> keys) override;
  bool Look(LookRequest request) override;
  void Pin(std::span<const ChunkKey> keys) override { pins_.Add(keys); }
  void Unpin(std::span<const ChunkKey> keys) override { pins_.Remove(keys); }
  size_t pinned() const { return pins_.size(); }
  ReadId Get(ReadRequest request) override;
  void Cancel(ReadId id) override;
  Status Put(const ChunkWrite& chunk) override;
  Status Evict(const ChunkKey& key) override;
  TierStats Stats() const override;

 private:
  struct Read {
    ReadId id;
    ReadRequest request;
    TimePoint issued;
    double seconds;
    Status status;
    bool stalled;
    bool hung;
  };
  struct AskedFor {
    TimePoint due;
    LookRequest request;
    size_t answered = 0;
  };
  void StartHead();
  void Deliver(Read read);
  void Answer(AskedFor look);

  SimTierOptions options_;
  FakeClock& clock_;
  std::mt19937_64 rng_;
  std::unordered_set<ChunkKey> held_;
  std::deque<Read> queue_;
  std::deque<Read> ended_;      // due at once
  std::deque<Read> hung_;       // passed by the link
  std::deque<AskedFor> looks_;  // by when they are due
  Pins pins_;
  std::optional<TimePoint> head_done_;  // of queue_'s first
  TimePoint link_free_{};
  TimePoint trace_start_{};
  ReadId next_id_ = 1;
  uint64_t gets_ = 0;
  TierStats stats_;
};

struct SimRequest {
  RestoreRequest restore;
  double at_s = 0;                 // when it arrives
  std::optional<double> cancel_s;  // given up at this time if not done
};

struct SimOutcome {
  bool done = false;   // false: cancelled
  double seconds = 0;  // from arrival until every full chunk was resident
  RestoreReport report;
};

struct SimOptions {
  ComputeFit compute;  // what slices really take
  // If given, instead of `compute`: seconds of a slice of so many tokens after a prefix.
  std::function<double(double prefix, double tokens)> slice_s = {};
  double compute_jitter = 0;      // each slice's time varies by up to this share
  SpeedTrace compute_speed = {};  // from the beginning of each Run
  // If given: what restorations get of each step (ComputeShare), from the beginning of each Run.
  std::optional<SpeedTrace> compute_share = {};
  std::vector<SimTierOptions> tiers;
  // Turns before which a chunk of some request appears in the pool behind the Restorer's back, as
  // when an engine publishes what it has generated.
  double publish_share = 0;
  int pages = 256;
  int chunk_tokens = 128;
  int slice_tokens = 512;  // at least a chunk
  uint64_t seed = 0;
  bool check_invariants = true;  // of the Restorer, at every event
  Restorer::Options restorer = {};
  // Among several restorations: each step is one's, in this order.
  Schedule schedule = Schedule::kAdaptive;
};

class Simulator {
 public:
  explicit Simulator(SimOptions options);
  ~Simulator();

  // Keys of `chunks` full chunks of a document.
  std::vector<ChunkKey> Keys(int document, int chunks) const;
  RestoreRequest Request(int document, int chunks, Policy policy) const;
  SimTier& tier(int i) { return *tiers_[i]; }
  PagePool& pool() { return *pool_; }
  Restorer& restorer() { return *restorer_; }
  ComputeCost& cost() { return cost_; }
  const Clock& clock() const { return clock_; }

  // Teaches the cost models what compute and tiers take: they know it when a run begins.
  void Train();
  // Runs the requests to their ends and forgets their pages. CHECKs that no chunk is read before it
  // is published, and that all end up where they belong.
  std::vector<SimOutcome> Run(const std::vector<SimRequest>& requests);
  uint64_t turns() const { return turns_; }  // NextTurn calls so far

 private:
  struct Running;
  struct Turns {
    std::optional<ComputeTurn> slice = {};
    size_t whose = 0;
    std::optional<int> starved_at = {};  // the chunk that somebody has no budget for
    TimePoint wake = TimePoint::max();
  };
  void Begin();
  void End();
  void EraseEnded(std::vector<Running>& running, std::vector<SimOutcome>& outcomes);
  Turns TakeTurns(std::vector<Running>& running);
  void CheckInvariants() const;
  void AdvanceTo(TimePoint t);
  TimePoint NextTierEvent() const;
  ComputeTurn NextTurn(Running& running, int chunks);
  Seconds Step(double prefix, double tokens);
  void Compute(Running& running, const Claim& claim);
  void Starve(int chunk);
  void Finish(Running& running, SimOutcome& outcome);
  void PublishBehind(const std::vector<SimRequest>& requests);

  const SimOptions options_;
  FakeClock clock_;
  std::mt19937_64 rng_;
  ComputeCost cost_;
  std::unique_ptr<PagePool> pool_;
  std::vector<std::unique_ptr<SimTier>> tiers_;
  std::unique_ptr<Restorer> restorer_;
  TimePoint begin_{};                  // of the current Run
  std::optional<ComputeShare> share_;  // in it
  uint64_t turns_ = 0;
};

}  // namespace kvcake
