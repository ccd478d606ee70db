#include "cake/planner.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "cake/plan_walks.h"
#include "cake/split_search.h"
#include "cake/tier_splits.h"

namespace kvcake {
namespace {

using State = ChunkView::State;
constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr double kWaitMin = 1e-4;  // a shorter wait would only burn a core

int FirstMissing(const PlanInput& input) {
  const auto it = std::find_if(input.chunks.begin(), input.chunks.end(),
                               [](const ChunkView& c) { return c.state != State::kResident; });
  return static_cast<int>(it - input.chunks.begin());
}

// From `first`: chunks that compute may do now in one slice, by the sides of the plan.
int SliceChunks(const PlanInput& input, const Plan& plan, int first, bool take_over) {
  const int max = std::max(1, input.budget_chunks);
  int count = 0;
  for (int i = first; i < static_cast<int>(input.chunks.size()) && count < max; ++i, ++count) {
    const State state = input.chunks[i].state;
    if (plan.sides[i] == Side::kLoad) break;
    if (state != State::kAbsent && !(take_over && state == State::kInFlight)) break;
  }
  return count;
}

// Bits of the tiers whose speed is known.
uint32_t KnownTiers(const PlanInput& input) {
  uint32_t known = 0;
  for (size_t t = 0; t < input.tiers.size(); ++t) {
    if (input.tiers[t].known) known |= 1u << t;
  }
  return known;
}

// A chunk that a tier of known speed can deliver is not left to one whose speed nobody knows.
// Nothing where that changes nothing.
std::optional<PlanInput> CountOnKnownTiers(const PlanInput& input) {
  const uint32_t known = KnownTiers(input);
  if (known == 0 || std::popcount(known) == static_cast<int>(input.tiers.size())) return {};
  PlanInput narrowed = input;
  for (ChunkView& chunk : narrowed.chunks) {
    if ((chunk.tiers & known) != 0) chunk.tiers &= known;
  }
  return narrowed;
}

// Gives what is not computed to the tier that will have it soonest. Where nothing is known of a
// tier that could be it, any may have it.
void AssignTiers(const PlanInput& input, int first, Plan& plan) {
  const uint32_t known = input.tiers.size() == 1 ? 1 : KnownTiers(input);
  LoadWalk loads(input);
  ForEachByChoice(input, first, [&](int i) {
    if (plan.sides[i] == Side::kCompute || (input.chunks[i].tiers & ~known) != 0) return;
    loads.Load(input.chunks[i], &plan.tiers[i]);
  });
}

Plan FixedPlan(const PlanInput& input, int first) {
  Plan plan;
  const int n = static_cast<int>(input.chunks.size());
  plan.sides.resize(n);
  plan.tiers.assign(n, -1);
  for (int i = 0; i < n; ++i) {
    const bool compute = i < *input.fixed_split || input.chunks[i].IsHole();
    plan.sides[i] = compute ? Side::kCompute : Side::kLoad;
  }
  AssignTiers(input, first, plan);
  plan.slice_chunks = SliceChunks(input, plan, first, /*take_over=*/true);
  plan.reason = plan.slice_chunks > 0 ? "slice of" : "waiting for loads: not the compute lane's";
  plan.wait_s = 1;
  return plan;
}

// Either lane may have any chunk, from any tier.
Plan OpenPlan(const PlanInput& input) {
  Plan plan;
  plan.sides.assign(input.chunks.size(), Side::kEither);
  plan.tiers.assign(input.chunks.size(), -1);
  return plan;
}

// Cake as published (Algorithm 1): both lanes go on until they meet, and a slice is as long as it
// may be, whatever the loads are about to deliver.
Plan PublishedPlan(const PlanInput& input, int first) {
  Plan plan = OpenPlan(input);
  plan.slice_chunks = SliceChunks(input, plan, first, /*take_over=*/true);
  plan.reason = plan.slice_chunks > 0 ? "nothing is predicted: slice of"
                                      : "waiting for a slice of another request";
  plan.wait_s = 1;
  return plan;
}

// The same for want of numbers, but careful: what is in flight is left to the loads, until only
// that is left. Compute then takes one chunk more, as the loads may be very slow.
Plan BlindPlan(const PlanInput& input, int first) {
  Plan plan = OpenPlan(input);
  AssignTiers(input, first, plan);
  plan.slice_chunks = SliceChunks(input, plan, first, /*take_over=*/false);
  if (plan.slice_chunks == 0) {
    plan.slice_chunks = std::min(1, SliceChunks(input, plan, first, /*take_over=*/true));
  }
  plan.reason = plan.slice_chunks > 0 ? "costs are not known yet: slice of"
                                      : "waiting for a slice of another request";
  plan.wait_s = 1;
  return plan;
}

// Where tiers hold different chunks one split of each segment may not do: it can be better to load
// the front from a fast tier, and to compute some of the rest that only a slow one has.
Splits BestSplits(const PlanInput& input, const PlannerOptions& options, int first) {
  constexpr double kGainMin = 0.999;  // no flipping between plans that are as good
  Splits best = LeastFinish(input, options, first);
  auto by_sets = LeastFinishBySets(input, options, first);
  if (by_sets && by_sets->finish_s < best.finish_s * kGainMin) return *std::move(by_sets);
  return best;
}

// Near the meeting point a slice that turns out longer than predicted makes the loads wait. Half of
// it first costs a slice's fixed part and lets the next decision use what has been seen since.
bool WorthHalving(const PlanInput& input, int first, int chunks) {
  if (chunks < 2 || first + chunks >= static_cast<int>(input.chunks.size())) return false;
  const double tokens = input.chunk_tokens, half = (chunks + 1) / 2;
  const auto seconds = [&](double from, double count) {
    return input.compute.SecondsFor(from * tokens, count * tokens);
  };
  const double whole = seconds(first, chunks);
  const double extra = seconds(first, half) + seconds(first + half, chunks - half) - whole;
  return input.compute.noise * whole > 2 * std::max(extra, 0.0);
}

double WaitSeconds(const PlanInput& input, int first) {
  double next_s = kNever;
  for (int i = first; i < static_cast<int>(input.chunks.size()); ++i) {
    if (input.chunks[i].state == State::kInFlight) next_s = std::min(next_s, input.chunks[i].eta_s);
  }
  return std::isfinite(next_s) ? std::clamp(1.25 * next_s, 10 * kWaitMin, 1.0) : 10e-3;
}

}  // namespace

Plan MakePlan(const PlanInput& asked, const PlannerOptions& options) {
  const std::optional<PlanInput> narrowed = CountOnKnownTiers(asked);
  const PlanInput& input = narrowed ? *narrowed : asked;
  const int first = FirstMissing(input);
  const int n = static_cast<int>(input.chunks.size());
  if (first == n) {
    Plan plan;
    plan.sides.assign(n, Side::kCompute);
    plan.tiers.assign(n, -1);
    plan.finish_s = input.compute_busy_s;
    plan.reason = "done";
    return plan;
  }
  if (input.fixed_split) return FixedPlan(input, first);
  if (!input.predict) return PublishedPlan(input, first);
  // A tier whose speed is not known gets a moment to show it; then compute goes on chunk by chunk.
  const bool known = input.compute.known();
  uint32_t wanted = 0;
  for (int i = first; i < n; ++i) wanted |= input.chunks[i].tiers;
  for (; wanted != 0; wanted &= wanted - 1) {
    const TierView& tier = input.tiers[std::countr_zero(wanted)];
    if (tier.known) continue;
    const double tokens = input.chunk_tokens;
    const double chunk_s = input.compute.SecondsFor(first * tokens, tokens);
    const double patience_s = known ? options.blind_wait_chunks * chunk_s : options.blind_wait_s;
    if (tier.waited_s < patience_s) {
      Plan plan = OpenPlan(input);
      plan.wait_s = std::max(patience_s - tier.waited_s, kWaitMin);
      plan.reason = "waiting for the first load to show the tier's speed";
      return plan;
    }
    if (!known) break;
    Plan plan = BlindPlan(input, first);
    // What has been silent for long may be trusted to be for half as long again.
    const double trusted = std::max(1.0, tier.waited_s / (2 * chunk_s));
    plan.slice_chunks = static_cast<int>(std::min<double>(plan.slice_chunks, trusted));
    return plan;
  }
  if (!known) {
    // One chunk will tell what the others take; the loads may be about to overtake a longer slice.
    Plan plan = BlindPlan(input, first);
    plan.slice_chunks = std::min(plan.slice_chunks, 1);
    return plan;
  }

  Splits splits = BestSplits(input, options, first);
  Plan plan;
  plan.sides = std::move(splits.sides);
  plan.tiers = std::move(splits.tiers);
  plan.finish_s = splits.finish_s;
  plan.slice_chunks = SliceChunks(input, plan, first, /*take_over=*/true);
  if (plan.slice_chunks == 0) {
    plan.wait_s = WaitSeconds(input, first);
    plan.reason = input.chunks[first].state == State::kComputing
                      ? "waiting for a slice of another request"
                      : "not started: would finish after the loads";
    return plan;
  }
  const int end = first + plan.slice_chunks;
  plan.reason = plan.slice_chunks < input.budget_chunks ? "slice shrunk to" : "slice of";
  if (end < n && plan.sides[end] == Side::kLoad && input.chunks[end].state != State::kResident &&
      WorthHalving(input, first, plan.slice_chunks)) {
    plan.slice_chunks = (plan.slice_chunks + 1) / 2;
    plan.reason = "slice shrunk to";
  }
  return plan;
}

}  // namespace kvcake
