// What a slice of compute and a read of a tier take, learnt while running.
#pragma once

#include <cstdint>
#include <deque>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/status.h"
#include "kv/slice_time.h"

namespace kvcake {

// What has been learnt of a causal SliceTime, and how well.
struct ComputeFit {
  double c0 = 0, g = 0, b = 0, a = 0;  // its coefficients, none negative
  int samples = 0;                     // 0: nothing is known, SecondsFor is 0
  double noise = 0;                    // typical relative error of the fit on what it was fitted to

  bool known() const { return samples > 0; }
  SliceTime time() const { return {.c0 = c0, .g = g, .b = b, .a = a}; }
  // As time() has them, but summed from c0 on: what a planner did once it does again, to the bit.
  double SecondsFor(double prefix, double tokens) const {
    return time().AddedTo(c0, prefix, tokens);
  }
  // For slices that share steps of `step_tokens` with others: each takes so many whole steps.
  ComputeFit InSteps(double steps, double step_tokens) const;
  ComputeFit Scaled(double by) const;
};

// An online fit over a bounded window of samples: non-negative least squares on relative errors,
// outliers weighted down, drawn towards a one-parameter model when samples are few or alike.
// Thread-safe.
class ComputeCost {
 public:
  struct Options {
    // a/b as far as it is known beforehand: the arithmetic of attention for one (query, key) pair
    // over twice that of everything else for one token. Matters for the first few samples only.
    double attention_ratio = 0;
    int window = 128;
  };

  ComputeCost() : ComputeCost(Options()) {}
  explicit ComputeCost(Options options) : options_(options) {}

  // `tokens` new tokens after `prefix` took this long. Ignores what cannot be, and doubts what took
  // far longer than expected until the next one does, too.
  void Add(int prefix, int tokens, Seconds took);
  // The fit to all samples, times what the last ones took of it: speeds change while a prompt is
  // restored, and a window of samples does not.
  ComputeFit fit() const;

  nlohmann::json ToJson() const;
  // Replaces everything learnt; kInvalidArgument (and nothing changed) if the text is not ours.
  [[nodiscard]] Status FromJson(const nlohmann::json& json);

 private:
  struct Sample {
    double prefix, tokens, seconds;
  };
  void Push(const Sample& sample) REQUIRES(mutex_);
  ComputeFit FitSamples() const REQUIRES(mutex_);
  double Drift(const ComputeFit& fit) const REQUIRES(mutex_);

  const Options options_;
  mutable Mutex mutex_;
  std::deque<Sample> samples_ GUARDED_BY(mutex_);  // oldest first
  std::optional<Sample> doubted_ GUARDED_BY(mutex_);
  // The front of samples_ is this process's first ever.
  bool first_is_cold_ GUARDED_BY(mutex_) = true;
  ComputeFit fit_ GUARDED_BY(mutex_);
};

// What is known of a tier: reads that are queued together complete in order, the first after
// fixed_s + bytes/rate, each next one bytes/rate later.
struct TierEstimate {
  bool known = false;
  double fixed_s = 0;
  double bytes_per_s = 0;
  double beside_s = 0;  // by which both lanes end later for each chunk loaded beside a slice
  double core_s = 0;    // that a core works for each chunk that comes, as on decoding it; beside a
                        // slice all ends later by that, too, shared by the cores that compute

  double IntervalFor(double bytes) const { return known ? bytes / bytes_per_s : 0; }
};

// Learns a tier's speed from reads that share its link: from the gaps between completions while the
// link is busy, not from the time of one read. Unsynchronised.
class TierCost {
 public:
  void OnStart(TimePoint now);
  // bytes: delivered; 0 (a miss, a cancelled read) teaches nothing about the rate.
  void OnDone(TimePoint now, uint64_t bytes);
  // A read was cancelled: nothing is expected of it any more, and its end is told to OnLate
  // instead.
  void OnCancel() { --in_flight_; }
  void OnLate(TimePoint now, uint64_t bytes);
  // A core worked so long for a chunk that came, and computed nothing meanwhile.
  void AddCore(double core_s);
  // A prompt was restored that much later than planned (negative: sooner), and so many chunks came
  // while slices of it ran: what the lanes cost each other on the same cores.
  void AddBeside(double late_s, uint64_t chunks);
  // A prompt was loaded alone: what it would cost to compute beside that is forgotten slowly, so
  // that it is tried again now and then.
  void ForgetBeside();

  const TierEstimate& estimate() const { return estimate_; }
  int in_flight() const { return in_flight_; }
  // Since when nothing has come: the last completion, or the start of a busy period.
  TimePoint last_progress() const { return last_progress_; }
  // The start of the first read since anything was delivered; failures deliver nothing.
  TimePoint silent_since() const { return silent_since_.value_or(last_progress_); }
  bool measured_since(TimePoint t) const { return estimate_.known && last_sample_ >= t; }

  nlohmann::json ToJson() const;
  [[nodiscard]] Status FromJson(const nlohmann::json& json);

 private:
  struct Sample {
    double seconds, bytes;
    int reads = 1;  // that came together
  };
  void AddGap(const Sample& gap);
  void DropKeptIfSlower(const Sample& first);
  void Update();
  double Slowdown(double bytes_per_s) const;
  void HoldToFirsts();

  int in_flight_ = 0;
  bool first_of_burst_ = true;  // no completion since the link became busy
  TimePoint last_progress_{};
  std::optional<TimePoint> silent_since_;
  TimePoint last_sample_{};
  bool kept_ = false;          // firsts_ and gaps_ are FromJson's alone
  std::deque<Sample> firsts_;  // first completion of a busy period, from its start
  std::deque<Sample> gaps_;    // later completions, from those before them
  // The sums of gaps after the last of firsts_, and between it and the one before.
  Sample gaps_since_{0, 0}, gaps_between_{0, 0};
  TierEstimate estimate_;
};

}  // namespace kvcake
