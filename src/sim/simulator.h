// Restorations in simulated time: the real Restorer, planner, page pool and the engine's turns of a
// step on a fake clock, with tiers and a compute lane that only take the time they are told to.
// Deterministic.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <vector>

#include "cake/prefill_order.h"
#include "cake/restorer.h"
#include "sim/compute_share.h"
#include "sim/sim_tier.h"
#include "sim/speed_trace.h"

namespace kvcake {

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
  std::function<void(const Restorer&)> check = {};  // called at every event, if given: for tests
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
  class Taker;
  struct StepSlice {
    int whose = 0;  // index of the running request
    Claim claim;
  };
  struct Turns {
    std::optional<StepSlice> slice = {};
    // The chunk that the step is about; without a slice, one that nobody has a budget for.
    std::optional<int> wanted_chunk = {};
    TimePoint wake = TimePoint::max();
  };
  void Begin();
  void End();
  void EraseEnded(std::vector<Running>& running, std::vector<SimOutcome>& outcomes);
  Turns TakeTurns(std::vector<Running>& running);
  void Check() const;
  void AdvanceTo(TimePoint t);
  TimePoint NextTierEvent() const;
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
