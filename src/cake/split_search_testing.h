// What tests of the searches for splits share.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "cake/planner.h"

namespace kvcake::testing_util {

// Exact numbers: no promise of a gain is asked for.
inline constexpr PlannerOptions kExact = {.compute_gain_min = 0,
                                          .compute_gain_min_waiting = 0,
                                          .compute_gain_min_s = 0,
                                          .take_over_margin_chunks = 0};

// When all is resident if each chunk is made as `from` says: by compute (-1) or a tier, which loads
// what is wanted first. Compute goes on while what it does not need yet is loaded.
inline double FinishOf(const PlanInput& input, const std::vector<int8_t>& from) {
  double compute_s = input.compute_busy_s, loaded_s = 0;
  std::vector<double> tier_s;
  for (const TierView& tier : input.tiers) tier_s.push_back(tier.drain_s);
  for (size_t i = 0; i < from.size(); ++i) {
    const ChunkView& chunk = input.chunks[i];
    if (chunk.state == ChunkView::State::kResident) continue;
    if (from[i] < 0) {
      compute_s =
          std::max(compute_s, loaded_s) +
          input.compute.SecondsFor(static_cast<double>(i) * input.chunk_tokens, input.chunk_tokens);
    } else if (chunk.state == ChunkView::State::kInFlight) {
      loaded_s = std::max(loaded_s, chunk.eta_s);
    } else {
      tier_s[from[i]] += input.tiers[from[i]].interval_s;
      loaded_s = std::max(loaded_s, tier_s[from[i]]);
    }
  }
  return std::max(compute_s, loaded_s);
}

// Over all choices of who makes each chunk.
inline double LeastOfChoices(const PlanInput& input) {
  double least_s = 1e9;
  std::vector<int8_t> from(input.chunks.size(), -1);
  const auto choose = [&](const auto& self, size_t i) -> void {
    if (i == from.size()) {
      least_s = std::min(least_s, FinishOf(input, from));
      return;
    }
    from[i] = -1;
    self(self, i + 1);
    const ChunkView& chunk = input.chunks[i];
    if (chunk.state == ChunkView::State::kResident) return;
    for (size_t t = 0; t < input.tiers.size(); ++t) {
      if ((chunk.tiers >> t & 1) == 0) continue;
      from[i] = static_cast<int8_t>(t);
      self(self, i + 1);
      if (chunk.state == ChunkView::State::kInFlight) break;  // whichever tier it is read from
    }
  };
  choose(choose, 0);
  return least_s;
}

}  // namespace kvcake::testing_util
