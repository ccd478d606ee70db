#include "bench/bound.h"

#include <algorithm>

#include "base/check.h"

namespace kvcake::bench {

LaneCurve ComputeCurve(const RestoreReport& compute_only, const ComputeFit& fit) {
  LaneCurve ends = {0};
  for (const TimelineEntry& entry : compute_only.timeline) {
    if (entry.lane != "compute" || entry.outcome != Outcome::kPublished) continue;
    const double from = std::max(ends.back(), entry.start_s);
    // A last part shorter than a chunk is the tail.
    const int chunks = entry.tokens / compute_only.chunk_tokens;
    for (int i = 1; i <= chunks; ++i) {
      const double share = fit.known()
                               ? fit.SecondsFor(entry.first_token, i * compute_only.chunk_tokens) /
                                     fit.SecondsFor(entry.first_token, entry.tokens)
                               : static_cast<double>(i) / chunks;
      ends.push_back(from + (entry.end_s - from) * share);
    }
  }
  return ends;
}

Result<LaneCurve> LoadCurve(const RestoreReport& load_only, int chunks) {
  LaneCurve ends = {0};
  for (const TimelineEntry& entry : load_only.timeline) {
    if (entry.lane == "compute" || entry.outcome != Outcome::kPublished) continue;
    ends.push_back(std::max(ends.back(), entry.end_s));
  }
  const int loaded = static_cast<int>(ends.size()) - 1;
  if (loaded < 2 ||
      loaded * load_only.chunk_tokens + load_only.chunk_tokens < load_only.prompt_tokens) {
    return Fail(ErrorCode::kIo,
                "only {} chunks of {} tokens could be loaded: is the disk full, or failing?",
                loaded, load_only.prompt_tokens);
  }
  const double pace = (ends.back() - ends[1]) / (loaded - 1);
  while (static_cast<int>(ends.size()) <= chunks) ends.push_back(ends.back() + pace);
  return ends;
}

namespace {

// Both curves as straight lines between whole chunks, `part` of the way from split m to m + 1: the
// compute lane's end grows, the load lane's falls, and where they cross is the best.
double Crossing(double compute0, double compute1, double load0, double load1) {
  const double ahead0 = load0 - compute0, ahead1 = load1 - compute1;
  if (ahead0 <= 0 || ahead1 >= 0)
    return std::min(std::max(compute0, load0), std::max(compute1, load1));
  const double part = ahead0 / (ahead0 - ahead1);
  return compute0 + part * (compute1 - compute0);
}

}  // namespace

namespace {

// The least time of all splits of [0, end), the last part of the prompt apart.
Bound LeastBefore(int end, const LaneCurve& compute, const LaneCurve& load,
                  const std::vector<bool>& present) {
  double holes_s = 0;
  int loads = 0;
  // Goes from the split that computes everything to the one that loads all it can.
  double compute_end = compute[end], load_end = 0;
  Bound bound{.whole_s = compute_end, .fractional_s = compute_end, .split = end};
  for (int split = end - 1; split >= 0; --split) {
    if (present[split]) {
      ++loads;
    } else {
      holes_s += compute[split + 1] - compute[split];
    }
    const double next_compute = compute[split] + holes_s, next_load = load[loads];
    if (const double whole_s = std::max(next_compute, next_load); whole_s < bound.whole_s) {
      bound.whole_s = whole_s;
      bound.split = split;
    }
    bound.fractional_s =
        std::min(bound.fractional_s, Crossing(next_compute, compute_end, next_load, load_end));
    compute_end = next_compute;
    load_end = next_load;
  }
  return bound;
}

}  // namespace

Bound LeastTime(const LaneCurve& compute, const LaneCurve& load, const std::vector<bool>& present,
                double tail_s) {
  const int chunks = static_cast<int>(present.size());
  CHECK(static_cast<int>(compute.size()) == chunks + 1);
  CHECK(static_cast<int>(load.size()) >= chunks + 1);
  Bound bound = LeastBefore(chunks, compute, load, present);
  // A hole is computed when all before it is there; then come the holes behind it.
  double holes_s = 0;
  for (int hole = chunks - 1; hole >= 0; --hole) {
    if (present[hole]) continue;
    holes_s += compute[hole + 1] - compute[hole];
    if (hole > 0 && !present[hole - 1]) continue;
    const Bound before = LeastBefore(hole, compute, load, present);
    bound.whole_s = std::max(bound.whole_s, before.whole_s + holes_s);
    bound.fractional_s = std::max(bound.fractional_s, before.fractional_s + holes_s);
  }
  bound.whole_s += tail_s;
  bound.fractional_s += tail_s;
  return bound;
}

}  // namespace kvcake::bench
