#include "cake/split_search.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "base/check.h"
#include "cake/plan_walks.h"

namespace kvcake {
namespace {

using State = ChunkView::State;
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr size_t kPartialMax = 8;  // what is tried grows no further, however many the holes

// What some segments take: to compute all of them, and of that what can be loaded.
struct Rest {
  double compute_s = 0, loadable_s = 0;
  double loadable = 0;  // chunks
};

// Holes, then chunks that can be loaded: [begin, end).
struct Segment {
  int begin = 0, end = 0;
  // At [m - begin]: the time of computing the holes and [begin, m), from when all before is
  // resident; of computing all up to m, in slices that go on from one segment into the next; when
  // what is in flight of [m, end) has come; may compute go so far?
  std::vector<double> compute_s, through_s, in_flight_s;
  std::vector<bool> allowed;
  std::optional<int> computed_end = {};  // where nothing is left; none: a slice is waited for
  Rest behind = {};                      // of the segments after it
};

// Splits of the first segments.
struct Partial {
  double ready_s = 0;  // when those segments are resident
  int loads = 0;
  LoadWalk link = {};
  int before = -1;        // the splits of the segments before, in the level before
  int split = 0;          // of the last of these segments
  bool computed = false;  // all of them, none is waited for
};

class SplitSearch {
 public:
  SplitSearch(const PlanInput& input, const PlannerOptions& options, int first)
      : input_(input),
        options_(options),
        first_(first),
        n_(static_cast<int>(input.chunks.size())),
        beside_(input) {
    Through through{.compute = ComputeWalk(input)};
    for (int begin = first; begin < n_; begin = segments_.back().end) AddSegment(begin, &through);
    for (size_t i = segments_.size() - 1; i > 0; --i) {
      const Segment& s = segments_[i];
      segments_[i - 1].behind = {
          .compute_s = s.behind.compute_s + s.compute_s.back(),
          .loadable_s = s.behind.loadable_s + s.compute_s.back() - s.compute_s[0],
          .loadable = s.behind.loadable + (s.end - s.begin)};
    }
  }

  Splits Run() {
    std::vector<int> splits;
    const double best_s = Search(/*wait=*/false, &splits);
    const int begin = segments_[0].begin;
    if (begin == first_ && splits[0] > begin) {
      std::vector<int> waiting;
      const double wait_s = Search(/*wait=*/true, &waiting);
      if (wait_s <= best_s + EnoughGain(input_, options_, first_, best_s, splits[0] - begin)) {
        return Assign(waiting, wait_s);
      }
    }
    return Assign(splits, best_s);
  }

 private:
  // As far as there are segments: computes all, and what that must gain over loads in flight.
  struct Through {
    ComputeWalk compute;
    double taken_over_s = 0;
  };

  void AddSegment(int holes, Through* through) {
    Segment s;
    s.begin = holes;
    ComputeWalk compute(input_);
    for (; s.begin < n_ && input_.chunks[s.begin].IsHole(); ++s.begin) {
      compute.Compute(s.begin);
      through->compute.Compute(s.begin);
    }
    for (s.end = s.begin; s.end < n_ && !input_.chunks[s.end].IsHole();) ++s.end;
    const int length = s.end - s.begin;
    s.in_flight_s.assign(length + 1, 0);
    int in_flight = s.end;  // the first chunk that a load owns
    for (int i = length - 1; i >= 0; --i) {
      const ChunkView& chunk = input_.chunks[s.begin + i];
      const bool flying = chunk.state == State::kInFlight;
      s.in_flight_s[i] = std::max(s.in_flight_s[i + 1], flying ? chunk.eta_s : 0);
      if (flying) in_flight = s.begin + i;
    }
    s.allowed.assign(length + 1, false);
    s.allowed[0] = true;
    s.computed_end = s.begin;
    s.compute_s.push_back(compute.now_s());
    s.through_s.push_back(through->compute.now_s() + through->taken_over_s);
    const double margin_s = options_.take_over_margin_chunks * SliceSeconds(input_, s.begin, 1);
    bool free = true;  // nobody takes over from a slice
    for (int m = s.begin; m < s.end; ++m) {
      const ChunkView& chunk = input_.chunks[m];
      free = free && chunk.state != State::kComputing;
      if (free && chunk.IsMissing()) {
        compute.Compute(m);
        through->compute.Compute(m);
        s.computed_end = m + 1;
      }
      s.allowed[m + 1 - s.begin] = free && chunk.IsMissing();
      const double taken_over_s = m >= in_flight ? margin_s : 0;
      s.compute_s.push_back(compute.now_s() + taken_over_s);
      s.through_s.push_back(through->compute.now_s() + through->taken_over_s + taken_over_s);
    }
    if (!free) s.computed_end.reset();
    if (in_flight < s.end) through->taken_over_s += margin_s;
    segments_.push_back(std::move(s));
  }

  // The least time over all splits, or those that compute nothing of the first segment.
  double Search(bool wait, std::vector<int>* splits) {
    std::vector<std::vector<Partial>> levels(1);
    levels[0].push_back(
        {.ready_s = input_.compute_busy_s, .link = LoadWalk(input_), .computed = true});
    for (size_t i = 0; i + 1 < segments_.size(); ++i) {
      levels.push_back(Extend(segments_[i], levels.back(), wait && i == 0));
      Thin(segments_[i].behind, levels.back());
    }
    const Partial best = BestOf(segments_.back(), levels.back(), wait && segments_.size() == 1);
    const Partial* partial = &best;
    const double finish_s = partial->ready_s;
    splits->assign(segments_.size(), 0);
    for (size_t i = segments_.size(); i > 0; --i) {
      (*splits)[i - 1] = partial->split;
      partial = &levels[i - 1][partial->before];
    }
    return finish_s;
  }

  // Visits every split of one more segment behind each of those before it.
  template <typename Visit>
  void ForEachSplit(const Segment& s, const std::vector<Partial>& partials, bool wait,
                    Visit&& visit) const {
    for (size_t k = 0; k < partials.size(); ++k) {
      const Partial& before = partials[k];
      LoadWalk link = before.link;
      int loads = before.loads;
      double loaded_s = 0, coming = 0;
      for (int m = s.end;; --m) {
        const size_t at = m - s.begin;
        if (s.allowed[at] && (!wait || at == 0)) {
          const double compute_s = s.compute_s[at];
          const double computed_s = before.computed ? input_.compute_busy_s + s.through_s[at]
                                                    : before.ready_s + compute_s;
          visit(std::max({computed_s, loaded_s, s.in_flight_s[at]}) +
                    beside_.Seconds(compute_s, coming),
                loads, link, static_cast<int>(k), m);
        }
        if (at == 0) break;
        const ChunkView& chunk = input_.chunks[m - 1];
        if (chunk.IsMissing()) ++coming;
        if (chunk.state != State::kAbsent) continue;
        loaded_s = std::max(loaded_s, link.Load(chunk));
        ++loads;
      }
    }
  }

  // What the engine computes once all is resident, where the last segment is split there.
  double LastTokenSeconds(int split) const {
    const bool computed = split == n_ && input_.chunks[n_ - 1].state != State::kResident;
    return computed ? 0 : input_.last_token_s;
  }

  // The least time that the last segment brings, what follows it included, with the fewest loads.
  // Its link is not kept.
  Partial BestOf(const Segment& s, const std::vector<Partial>& partials, bool wait) const {
    Partial best{.ready_s = kInfinity};
    ForEachSplit(s, partials, wait,
                 [&](double ready_s, int loads, const LoadWalk&, int before, int split) {
                   ready_s += LastTokenSeconds(split);
                   if (ready_s > best.ready_s) return;
                   if (ready_s == best.ready_s && loads >= best.loads) return;
                   best = {ready_s, loads, {}, before, split};
                 });
    return best;
  }

  // The best of each number of loads that is better than any with fewer; first the one that waits
  // for none, where there is one, as computing may go on in its last slice.
  std::vector<Partial> Extend(const Segment& s, const std::vector<Partial>& partials, bool wait) {
    const int loads_min = partials.front().loads;
    const int loads_max = partials.back().loads + (s.end - s.begin);
    std::vector<Partial> best(loads_max - loads_min + 1, {.ready_s = kInfinity});
    std::vector<Partial> next;
    ForEachSplit(s, partials, wait,
                 [&](double ready_s, int loads, const LoadWalk& link, int before, int split) {
                   Partial& with = best[loads - loads_min];
                   if (split == s.computed_end && partials[before].computed) {
                     next.push_back({ready_s, loads, link, before, split, /*computed=*/true});
                   } else if (ready_s < with.ready_s) {
                     with = {ready_s, loads, link, before, split};
                   }
                 });
    for (Partial& partial : best) {
      if (partial.ready_s < kInfinity && (next.empty() || partial.ready_s < next.back().ready_s)) {
        next.push_back(std::move(partial));
      }
    }
    return next;
  }

  // Keeps those with the best prospects: of both lanes being done with the rest at once, as if that
  // could be cut anywhere.
  void Thin(const Rest& rest, std::vector<Partial>& partials) const {
    if (partials.size() <= kPartialMax) return;
    const auto prospect_s = [&](const Partial& p) {
      const double free_s = p.link.free_s(), each_s = p.link.interval_s();
      const double computed_s = p.ready_s + rest.compute_s;
      if (rest.loadable < 1) return computed_s;
      const double gain_s = rest.loadable_s / rest.loadable;
      const double loads =
          std::clamp((computed_s - free_s) / (each_s + gain_s), 0.0, rest.loadable);
      return std::max(computed_s - loads * gain_s, free_s + loads * each_s);
    };
    const auto begin = partials.begin() + (partials.front().computed ? 1 : 0);
    std::nth_element(
        begin, partials.begin() + kPartialMax, partials.end(),
        [&](const Partial& a, const Partial& b) { return prospect_s(a) < prospect_s(b); });
    partials.resize(kPartialMax);
    std::sort(begin, partials.end(),
              [](const Partial& a, const Partial& b) { return a.loads < b.loads; });
  }

  Splits Assign(const std::vector<int>& splits, double finish_s) const {
    Splits result{.sides = std::vector<Side>(n_, Side::kCompute),
                  .tiers = std::vector<int8_t>(n_, -1),
                  .finish_s = finish_s - LastTokenSeconds(splits.back())};
    LoadWalk link(input_);
    for (size_t k = 0; k < segments_.size(); ++k) {
      for (int i = segments_[k].end - 1; i >= splits[k]; --i) {
        result.sides[i] = Side::kLoad;
        const ChunkView& chunk = input_.chunks[i];
        if (chunk.state == State::kAbsent) link.Load(chunk, &result.tiers[i]);
      }
    }
    return result;
  }

  const PlanInput& input_;
  const PlannerOptions& options_;
  const int first_, n_;
  const BesideCost beside_;
  std::vector<Segment> segments_;
};

}  // namespace

Splits LeastFinish(const PlanInput& input, const PlannerOptions& options, int first) {
  CHECK(first < static_cast<int>(input.chunks.size()));
  return SplitSearch(input, options, first).Run();
}

}  // namespace kvcake
