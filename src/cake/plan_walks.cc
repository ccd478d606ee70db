#include "cake/plan_walks.h"

#include <algorithm>
#include <limits>

namespace kvcake {

void ComputeWalk::Compute(int chunk) {
  if (chunk != next_ || chunk - first_ >= input_.slice_chunks_max) {
    base_s_ = now_s();
    first_ = chunk;
  }
  next_ = chunk + 1;
  slice_s_ = SliceSeconds(input_, first_, next_ - first_);
}

LoadWalk::LoadWalk(const PlanInput& input) : input_(&input) {
  for (const TierView& tier : input.tiers) free_s_.push_back(tier.drain_s);
}

double LoadWalk::free_s() const {
  double sum = 0;
  for (double s : free_s_) sum += s;
  return free_s_.empty() ? 0 : sum / static_cast<double>(free_s_.size());
}

double LoadWalk::interval_s() const {
  double rate = 0;
  for (const TierView& tier : input_->tiers) rate += Rate(tier);
  return 1 / std::max(rate, 1e-9);
}

double LoadWalk::Load(const ChunkView& chunk, int8_t* from) {
  int best = -1;
  double best_s = std::numeric_limits<double>::infinity();
  ForEachTier(chunk.tiers, [&](int tier) {
    const double s = free_s_[tier] + input_->tiers[tier].interval_s;
    if (s < best_s) best_s = s, best = tier;
  });
  if (best >= 0) free_s_[best] = best_s;
  if (from != nullptr) *from = static_cast<int8_t>(best);
  return best_s;
}

BesideCost::BesideCost(const PlanInput& input) : interval_s_(LoadWalk(input).interval_s()) {
  for (const TierView& tier : input.tiers) beside_s_ = std::max(beside_s_, tier.beside_s);
}

double BesideCost::Seconds(double compute_s, double coming) const {
  return beside_s_ * std::min(coming, compute_s / interval_s_);
}

double SliceSeconds(const PlanInput& input, int chunk, int count) {
  const double tokens = input.chunk_tokens;
  return input.compute.SecondsFor(chunk * tokens, count * tokens);
}

double EnoughGain(const PlanInput& input, const PlannerOptions& options, int first, double best_s,
                  int computed) {
  const double gain = input.waiting ? options.compute_gain_min_waiting : options.compute_gain_min;
  // What the next slice may take longer than predicted, when the loads are about to be done.
  const int slice = std::min(computed, input.slice_chunks_max);
  return std::max({best_s * gain, options.compute_gain_min_s,
                   input.compute.noise * SliceSeconds(input, first, slice)});
}

}  // namespace kvcake
