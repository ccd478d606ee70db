#include "runahead/chain_cost.h"

#include "base/check.h"

namespace kvcake {

double RankCost::SecondsFor(double prefix, double tokens) const {
  return (t0_s + time.SecondsFor(prefix, tokens)) / speed;
}

double RankCost::TokensWithin(double prefix, double seconds) const {
  const double slice_s = seconds * speed - t0_s;
  const double rest_s = slice_s - time.c0 - time.g * prefix;
  if (slice_s < time.floor || rest_s <= 0) return 0;
  // a c^2 + linear c = rest_s, solved so that a may be 0.
  const bool dense = time.attention == SliceTime::Attention::kDense;
  const double linear = time.b + time.a * (dense ? prefix : 2 * prefix);
  return 2 * rest_s / (linear + std::sqrt(linear * linear + 4 * time.a * rest_s));
}

ChainCost ChainCost::Last(int count) const {
  CHECK(count >= 1 && count <= static_cast<int>(ranks.size()));
  ChainCost cost = *this;
  cost.ranks.erase(cost.ranks.begin(), cost.ranks.end() - count);
  if (count == 1) cost.ranks[0].t0_s = 0;
  return cost;
}

ChainCost ChainCostOf(const EmulatedProfile& profile, int ranks, double link_bytes_per_s) {
  return {
      .ranks = std::vector<RankCost>(ranks, RankCost{.time = profile.time()}),
      .link = {.alpha_s = profile.link_latency_s, .bytes_per_s = link_bytes_per_s},
      .layers = profile.layers,
      .bytes_per_token_layer = static_cast<double>(profile.kv_bytes_per_token) / profile.layers};
}

}  // namespace kvcake
