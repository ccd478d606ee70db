// What plans are made of: the lanes' clocks as they go over chunks, and what both searches ask.
#pragma once

#include <algorithm>
#include <bit>
#include <boost/container/small_vector.hpp>
#include <cstdint>

#include "cake/planner.h"

namespace kvcake {

// The compute lane's clock as it goes forward chunk by chunk, in slices as long as allowed.
class ComputeWalk {
 public:
  explicit ComputeWalk(const PlanInput& input) : input_(input) {}

  double now_s() const { return base_s_ + slice_s_; }
  void Compute(int chunk);

 private:
  const PlanInput& input_;
  double base_s_ = 0, slice_s_ = 0;
  int first_ = 0, next_ = -1;
};

// When each tier's link is free for one more chunk.
class LoadWalk {
 public:
  LoadWalk() = default;  // of no tiers
  explicit LoadWalk(const PlanInput& input);
  // Loads a chunk from whichever of its tiers has it first; returns when.
  double Load(const ChunkView& chunk, int8_t* from = nullptr);
  double free_s() const;      // the mean of the links
  double interval_s() const;  // of all links together

 private:
  const PlanInput* input_ = nullptr;
  boost::container::small_vector<double, 4> free_s_;
};

// What the lanes cost each other: TierView::beside_s, by the dearest tier.
class BesideCost {
 public:
  explicit BesideCost(const PlanInput& input);
  // While so much is computed, and so many chunks are to come.
  double Seconds(double compute_s, double coming) const;

 private:
  double beside_s_ = 0;
  const double interval_s_;  // between two chunks, from whichever tiers
};

// Chunks a second.
inline double Rate(const TierView& tier) { return 1 / std::max(tier.interval_s, 1e-9); }

// Visits the numbers of the tiers, given as bits.
template <typename Visit>
void ForEachTier(uint32_t tiers, Visit&& visit) {
  for (; tiers != 0; tiers &= tiers - 1) visit(std::countr_zero(tiers));
}

// Visits the absent chunks from `first` on that tiers hold, in the order in which tiers are chosen
// for them: those that the fewest tiers hold first, from the back.
template <typename Visit>
void ForEachByChoice(const PlanInput& input, int first, Visit&& visit) {
  for (int choice = 1; choice <= static_cast<int>(input.tiers.size()); ++choice) {
    for (int i = static_cast<int>(input.chunks.size()) - 1; i >= first; --i) {
      const ChunkView& chunk = input.chunks[i];
      if (chunk.state != ChunkView::State::kAbsent) continue;
      if (std::popcount(chunk.tiers) == choice) visit(i);
    }
  }
}

// What a slice of so many chunks takes.
double SliceSeconds(const PlanInput& input, int chunk, int count);
// What computing so many chunks from `first` on must promise over waiting for the loads.
double EnoughGain(const PlanInput& input, const PlannerOptions& options, int first, double best_s,
                  int computed);

}  // namespace kvcake
