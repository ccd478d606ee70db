// Chains with random costs, for property tests.
#pragma once

#include <cmath>
#include <random>

#include "runahead/chain_cost.h"

namespace kvcake {

inline double LogUniform(std::mt19937& rng, double low, double high) {
  return std::exp(std::uniform_real_distribution(std::log(low), std::log(high))(rng));
}

// Causal or dense, even or uneven speeds, links from free to slower than compute.
inline ChainCost RandomChain(std::mt19937& rng, int ranks) {
  const auto one_in = [&](int n) { return rng() % n == 0; };
  SliceTime time;
  time.b = LogUniform(rng, 1e-5, 1e-3);
  time.a = time.b * LogUniform(rng, 1e-5, 1e-2);
  time.c0 = one_in(2) ? 0 : time.b * LogUniform(rng, 1, 200);
  if (one_in(2)) {
    time.attention = SliceTime::Attention::kDense;
    time.floor = one_in(2) ? 0 : time.b * LogUniform(rng, 1, 200);
  } else if (one_in(2)) {
    time.g = time.b * LogUniform(rng, 1e-3, 0.1);
  }
  ChainCost cost;
  cost.layers = 12 + static_cast<int>(rng() % 29);
  cost.bytes_per_token_layer = 1000;
  cost.qkv_share = std::uniform_real_distribution(0.0, 0.5)(rng);
  const bool uneven = one_in(2);
  for (int i = 0; i < ranks; ++i) {
    cost.ranks.push_back({.time = time,
                          .t0_s = one_in(2) ? 0 : time.b * LogUniform(rng, 1, 50),
                          .speed = uneven ? LogUniform(rng, 0.3, 2) : 1});
  }
  if (!one_in(3)) {
    // From a hundredth of what a token's linear part takes to three times that.
    const double token_s = time.b * LogUniform(rng, 0.01, 3);
    cost.link.bytes_per_s = cost.bytes_per_token() / token_s;
    cost.link.alpha_s = one_in(2) ? 0 : time.b * LogUniform(rng, 0.01, 3);
  }
  return cost;
}

}  // namespace kvcake
