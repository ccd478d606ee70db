// One cell of bench ttft: every policy on one prompt at one link, with some of its chunks stored.
#pragma once

#include <array>
#include <optional>
#include <vector>

#include "bench/bound.h"
#include "bench/harness.h"

namespace kvcake::bench {

// In the order in which a repeat runs them.
constexpr std::array kTtftPolicies = {Policy::kCompute, Policy::kLoad, Policy::kPublished,
                                      Policy::kCake};
// Beyond this, loading all chunks alone is known to lose: it is not run, and its time is the load
// curve's.
constexpr double kLoadOnlyRatioMax = 2;

struct TtftSpec {
  // The time to load every chunk over the time to compute them; with a link, what that comes to.
  double ratio = 1;
  std::optional<double> link_gbit = {};  // decides instead of the ratio; infinity: no link
  double latency_s = 0;
  double present = 1;  // share of the chunks that is stored
};

// What a run under Policy::kCake said of itself.
struct CakeNotes {
  double finish_error = 0;    // |predicted / actual - 1| of when all would be resident; 0: unknown
  double slice_error = 0;     // the same of its slices, on average
  double planning_us = 0;     // a turn: planner, claims and report
  double planning_share = 0;  // of the time until all was resident
  double compute_slowdown =
      0;  // of full slices beside loads, against compute-only; 0: no such slice
};

struct TtftCell {
  TtftSpec spec;
  double rate_bytes_per_s = 0;
  // One a repeat; load-only and as published: or none.
  std::array<std::vector<double>, kTtftPolicies.size()> ttft_s;
  std::vector<double> load_s;  // of loading alone, run or from the load curve
  std::vector<Bound> bounds;
  std::vector<CakeNotes> notes;  // one a repeat
  int meeting_token = 0;
  int other_answers = 0;  // runs that did not say what computing had said; on CUDA only

  const std::vector<double>& of(Policy policy) const;
  double ttft(Policy policy) const { return Median(of(policy)); }
  double bound_s() const;
  double bound_fractional_s() const;
  // Medians of the repeats' own ratios, which were measured together.
  double efficiency(Policy policy = Policy::kCake) const;  // bound / actual
  double against_better() const;             // cake / the better of compute-only and load-only
  double overlap() const;                    // 1/x_io + 1/x_compute, as the papers' tables have it
  double spread() const;                     // largest / smallest of cake's repeats
  double note(double CakeNotes::*of) const;  // median
};

// Measures cells on one prompt, whose chunks are taken from the store, or put there again, as cells
// ask for them: falling `present` is the cheapest order.
class TtftBench {
 public:
  struct Options {
    int context = 0;
    int repeats = 3;
    bool published = true;  // run Policy::kPublished, too
  };
  // Fills the store, and takes the time of computing.
  static Result<TtftBench> Create(Runtime& runtime, const Options& options);

  Result<TtftCell> Measure(const TtftSpec& spec);

 private:
  // A run on the link alone.
  struct Probe {
    LaneCurve curve;    // for as many chunks as the prompt has
    double tail_s = 0;  // of the prompt's last part
  };

  TtftBench(Runtime& runtime, const Options& options);

  std::vector<ChunkKey> Keys() const;
  bool Stored();
  void SetLink(TtftCell* cell);
  Status KeepOnly(double share);
  Result<Completion> Run(Policy policy, bool store);
  bool Runs(Policy policy, const TtftSpec& spec) const;
  Result<Probe> ProbeLink();
  Status Repeat(const Probe& probe, TtftCell* cell);

  Runtime& runtime_;
  const Options options_;
  const std::vector<int32_t> prompt_, probe_prompt_;
  double compute_s_ = 0;
  std::vector<bool> present_;
  std::vector<int> leave_;       // chunks in the order in which they are taken away
  std::vector<int32_t> answer_;  // every run's
  int other_answers_ = 0;        // of the cell that is being measured
};

}  // namespace kvcake::bench
