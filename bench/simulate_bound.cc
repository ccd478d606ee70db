// The bound with hindsight of a simulated restoration.
#include <algorithm>
#include <limits>

#include "bench/simulate_scenario.h"

namespace kvcake::bench {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

// When a tier has delivered one chunk, two and so on, of as many as it has.
std::vector<double> Deliveries(const ScenarioTier& tier) {
  std::vector<double> ends;
  const auto held = std::count(tier.held.begin(), tier.held.end(), true);
  for (int k = 1; k <= held; ++k) {
    ends.push_back(tier.speed.EndOf(tier.latency_s, k * tier.chunk_s));
  }
  return ends;
}

class HindsightBound {
 public:
  explicit HindsightBound(const Scenario& s)
      : s_(s), n_(s.chunks), slice_(std::max(1, s.slice_tokens / s.chunk_tokens)) {
    loadable_.assign(n_, false);
    for (const ScenarioTier& tier : s.tiers) {
      for (int i = 0; i < n_; ++i) loadable_[i] = loadable_[i] || tier.held[i];
    }
    FillSlices();
    FillPrefixes();
    FillLoads();
  }

  Hindsight Least() const {
    Hindsight least;
    // A hole is computed by a slice that begins with it or before it, when all before that slice is
    // resident; then come the holes behind the slice.
    const std::vector<double> holes = Holes(n_);
    std::vector<double> befores(n_, kNever);  // of [0, i), as far as they are asked for
    for (int hole = 0; hole < n_; ++hole) {
      if (loadable_[hole] || (hole > 0 && !loadable_[hole - 1])) continue;
      double end_s = kNever;
      for (int first = std::max(0, hole + 1 - slice_); first <= hole; ++first) {
        if (befores[first] == kNever) befores[first] = TimeOf(first);
        for (int count = hole + 1 - first; count <= std::min(slice_, n_ - first); ++count) {
          const double work_s = Slice(first, count) + holes[first + count];
          end_s = std::min(end_s, ComputeEnd(befores[first], work_s));
        }
      }
      least.bound_s = std::max(least.bound_s, end_s);
    }
    least.split = BestSplit(n_).split;
    least.bound_s = std::max(least.bound_s, TimeOf(n_));
    least.bound_s = s_.compute_speed.EndOf(least.bound_s, s_.SliceSeconds(s_.tokens(), 1));
    return least;
  }

 private:
  // Seconds of a slice of `count` chunks from `first` on, at full speed.
  void FillSlices() {
    const double chunk = s_.chunk_tokens;
    slices_.assign(static_cast<size_t>(n_) * slice_, 0);
    for (int i = 0; i < n_; ++i) {
      for (int count = 1; count <= std::min(slice_, n_ - i); ++count) {
        slices_[static_cast<size_t>(i) * slice_ + count - 1] =
            s_.share ? s_.SliceSeconds(i * chunk, s_.slice_tokens) * Steps(count)
                     : s_.SliceSeconds(i * chunk, count * chunk);
      }
    }
  }
  // A slice that shares steps takes whole ones.
  double Steps(int count) const {
    const double share = s_.shares ? 1 : *s_.share;
    return std::max(1.0, static_cast<double>(count) * s_.chunk_tokens / (share * s_.slice_tokens));
  }
  double Slice(int first, int count) const {
    return slices_[static_cast<size_t>(first) * slice_ + count - 1];
  }
  void FillPrefixes() {
    if (s_.share) return FillSharedPrefixes();
    FillWork();
    for (int i = 0; i <= n_; ++i) prefixes_.push_back(ComputeEnd(0, Work(i, i)));
  }
  // Goes over all choices of chunks to compute: those that are stored nowhere, and any others.
  void FillWork() {
    work_.assign(static_cast<size_t>(n_ + 1) * (n_ + 1), kNever);
    Work(0, 0) = 0;
    const auto relax = [&](int end, int computed, double work_s) {
      Work(end, computed) = std::min(Work(end, computed), work_s);
    };
    for (int i = 0; i < n_; ++i) {
      for (int computed = 0; computed <= i; ++computed) {
        const double work_s = Work(i, computed);
        if (work_s == kNever) continue;
        if (loadable_[i]) relax(i + 1, computed, work_s);
        for (int count = 1; count <= std::min(slice_, n_ - i); ++count) {
          relax(i + count, computed + count, work_s + Slice(i, count));
        }
      }
    }
  }
  double& Work(int end, int computed) {
    return work_[static_cast<size_t>(end) * (n_ + 1) + computed];
  }
  double Work(int end, int computed) const {
    return work_[static_cast<size_t>(end) * (n_ + 1) + computed];
  }
  // Steps last as long as full ones, one after the other, and chunks are done when theirs is.
  void FillSharedPrefixes() {
    ComputeShare share(Shares(), s_.slice_tokens, s_.chunk_tokens);
    prefixes_ = {0};
    for (double now_s = 0; static_cast<int>(prefixes_.size()) <= n_;) {
      const int done = static_cast<int>(prefixes_.size()) - 1;
      const int count = std::min({share.Budget(now_s), slice_, n_ - done});
      share.Step(now_s, count);
      now_s += s_.SliceSeconds(static_cast<double>(done) * s_.chunk_tokens, s_.slice_tokens);
      prefixes_.insert(prefixes_.end(), count, now_s);
    }
  }
  // When any k chunks can be loaded, from all tiers at once.
  void FillLoads() {
    loads_ = {0};
    for (const ScenarioTier& tier : s_.tiers) {
      const std::vector<double> ends = Deliveries(tier);
      loads_.insert(loads_.end(), ends.begin(), ends.end());
    }
    std::sort(loads_.begin(), loads_.end());
  }
  // The least work that computes every hole of [i, end), at [i].
  std::vector<double> Holes(int end) const {
    std::vector<double> work(end + 1, 0);
    for (int i = end - 1; i >= 0; --i) {
      work[i] = loadable_[i] ? work[i + 1] : kNever;
      if (loadable_[i]) continue;
      for (int count = 1; count <= std::min(slice_, end - i); ++count) {
        work[i] = std::min(work[i], Slice(i, count) + work[i + count]);
      }
    }
    return work;
  }
  SpeedTrace Shares() const { return s_.shares ? *s_.shares : SpeedTrace({{0, *s_.share}}); }
  double ComputeEnd(double start_s, double work_s) const {
    return s_.compute_speed.EndOf(start_s, work_s);
  }
  // The least time in which [0, end) can be there.
  double TimeOf(int end) const {
    if (s_.share) return BestSplit(end).bound_s;
    double least_s = kNever;
    for (int computed = 0; computed <= end; ++computed) {
      const double work_s = Work(end, computed);
      if (work_s == kNever) continue;
      least_s = std::min(least_s, std::max(ComputeEnd(0, work_s), loads_[end - computed]));
    }
    return least_s;
  }
  // The best of all splits of [0, end).
  Hindsight BestSplit(int end) const {
    const std::vector<double> holes = Holes(end);
    Hindsight best{.bound_s = kNever, .split = end};
    int loads = 0;
    for (int split = end; split >= 0; --split) {
      if (split < end) loads += loadable_[split];
      const double s = std::max(ComputeEnd(prefixes_[split], holes[split]), loads_[loads]);
      if (s < best.bound_s) best = {.bound_s = s, .split = split};
    }
    return best;
  }

  const Scenario& s_;
  const int n_, slice_;
  std::vector<bool> loadable_;    // from some tier
  std::vector<double> slices_;    // [first][count - 1]
  std::vector<double> work_;      // [end][computed]: the least that makes so many of [0, end)
  std::vector<double> prefixes_;  // when [0, i) can be computed
  std::vector<double> loads_;     // seconds, [0] is 0
};

// What no choice of tiers can beat: chunks that the tiers cannot have delivered by a time must have
// been computed by then, whichever these are. Of a slice every chunk bears an even part at least.
class TiersBound {
 public:
  explicit TiersBound(const Scenario& s) : s_(s), n_(s.chunks) {
    holders_.assign(n_, 0);
    for (size_t t = 0; t < s.tiers.size(); ++t) {
      const ScenarioTier& tier = s.tiers[t];
      for (int i = 0; i < n_; ++i) holders_[i] |= static_cast<unsigned>(tier.held[i]) << t;
      ends_.push_back(Deliveries(tier));
    }
    FillWork();
  }

  double Least() const {
    double least_s = Least(0, n_, 0);
    // Nothing behind a chunk is computed before all up to it are there.
    constexpr int kPlaces = 32;
    for (int i = 1; i <= kPlaces; ++i) {
      const int middle = i * n_ / (kPlaces + 1);
      if (middle > 0) least_s = std::max(least_s, Least(middle, n_, Least(0, middle, 0)));
    }
    return s_.compute_speed.EndOf(least_s, s_.SliceSeconds(s_.tokens(), 1));
  }

 private:
  void FillWork() {
    work_.assign(n_, kNever);
    const int slice = std::max(1, s_.slice_tokens / s_.chunk_tokens);
    const double chunk = s_.chunk_tokens;
    for (int first = 0; first < n_; ++first) {
      for (int count = 1; count <= std::min(slice, n_ - first); ++count) {
        const double s = s_.share ? s_.SliceSeconds(first * chunk, s_.slice_tokens) / slice
                                  : s_.SliceSeconds(first * chunk, count * chunk) / count;
        for (int i = first; i < first + count; ++i) work_[i] = std::min(work_[i], s);
      }
    }
    for (int i = 0; i < n_; ++i) dearest_.push_back(i);
    std::stable_sort(dearest_.begin(), dearest_.end(),
                     [&](int a, int b) { return work_[a] > work_[b]; });
  }
  // What is left of [begin, end) to compute when all tiers have worked on it until then: the
  // dearest chunks are loaded, as far as no set of tiers has more of its own than it can deliver.
  double WorkLeft(int begin, int end, double until_s) const {
    const size_t sets = size_t{1} << ends_.size();
    std::vector<int64_t> room(sets, 0);
    for (size_t set = 1; set < sets; ++set) {
      for (size_t t = 0; t < ends_.size(); ++t) {
        if ((set >> t & 1) == 0) continue;
        room[set] += std::upper_bound(ends_[t].begin(), ends_[t].end(), until_s) - ends_[t].begin();
      }
    }
    double left = 0;
    for (const int i : dearest_) {
      if (i < begin || i >= end) continue;
      bool loads = holders_[i] != 0;
      for (size_t set = 1; set < sets; ++set) {
        loads = loads && ((set & holders_[i]) != holders_[i] || room[set] > 0);
      }
      if (!loads) left += work_[i];
      for (size_t set = 1; loads && set < sets; ++set) {
        if ((set & holders_[i]) == holders_[i]) --room[set];
      }
    }
    return left;
  }
  // The least time at which [begin, end) can be there, when computing it starts at start_s.
  double Least(int begin, int end, double start_s) const {
    const auto ends = [&](double until_s) {
      const double work_s = WorkLeft(begin, end, until_s);
      return work_s > 0 ? s_.compute_speed.EndOf(start_s, work_s) : 0;
    };
    double low = 0, high = ends(0);
    for (int i = 0; i < 40 && high - low > 1e-6 * high; ++i) {
      const double middle = (low + high) / 2;
      (ends(middle) <= middle ? high : low) = middle;
    }
    return low;
  }

  const Scenario& s_;
  const int n_;
  std::vector<unsigned> holders_;          // bit t: tier t has the chunk
  std::vector<std::vector<double>> ends_;  // [tier]: when it has delivered so many
  std::vector<double> work_;               // the least that a chunk adds to compute, at full speed
  std::vector<int> dearest_;               // chunks, by falling work_
};

}  // namespace

Hindsight LeastTime(const Scenario& scenario) {
  Hindsight least = HindsightBound(scenario).Least();
  if (scenario.tiers.size() > 1) {
    least.bound_s = std::max(least.bound_s, TiersBound(scenario).Least());
  }
  return least;
}

Hindsight LeastTimeAtStart(const Scenario& scenario) {
  Scenario still = scenario;
  const auto frozen = [](const SpeedTrace& trace) {
    return SpeedTrace({{0, std::max(trace.SpeedAt(0), 1e-3)}});
  };
  still.compute_speed = frozen(still.compute_speed);
  for (ScenarioTier& tier : still.tiers) tier.speed = frozen(tier.speed);
  if (still.shares) still.share = std::max(still.shares->SpeedAt(0), 1e-3);
  still.shares.reset();
  return LeastTime(still);
}

}  // namespace kvcake::bench
