// Random restorations for the simulator's tests.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

#include "cake/restorer_testing.h"
#include "sim/simulator.h"

namespace kvcake::testing_util {

inline double LogUniform(std::mt19937& rng, double low, double high) {
  return std::exp(std::uniform_real_distribution<double>(std::log(low), std::log(high))(rng));
}

inline int Pick(std::mt19937& rng, int low, int high) {
  return std::uniform_int_distribution<int>(low, high)(rng);
}

// One chunk at position 0 takes 10 ms to compute, within a few times more at the end.
inline ComputeFit RandomCompute(std::mt19937& rng) {
  ComputeFit fit{.c0 = LogUniform(rng, 1e-5, 3e-3), .samples = 1};
  fit.b = (10e-3 - fit.c0) / 128;
  fit.a = fit.b * LogUniform(rng, 1e-6, 3e-4);
  fit.g = Pick(rng, 0, 1) * fit.b * 1e-3;
  return fit;
}

// The Restorer's invariants are checked at every event.
inline SimOptions Checked() {
  SimOptions options;
  options.check = CheckInvariants;
  return options;
}

struct Scenario {
  SimOptions options = Checked();
  int chunks = 0;
  std::vector<bool> held;

  double Seconds(Policy policy, SimOutcome* outcome = nullptr, bool trained = true) const {
    Simulator sim(options);
    if (trained) sim.Train();
    const auto keys = sim.Keys(1, chunks);
    for (int i = 0; i < chunks; ++i) {
      if (held[i]) sim.tier(0).Hold(keys[i]);
    }
    const auto result = sim.Run({{.restore = sim.Request(1, chunks, policy), .cancel_s = {}}})[0];
    EXPECT_TRUE(result.done);
    if (outcome != nullptr) *outcome = result;
    return result.seconds;
  }
  double ComputeSeconds(int first, int end) const {
    double s = 0;
    for (int i = first; i < end; i += 4) {
      s += options.compute.SecondsFor(i * 128, (std::min(i + 4, end) - i) * 128);
    }
    return s;
  }
  // Without holes: every split into whole chunks.
  double BestSplit() const {
    double best = ComputeSeconds(0, chunks);
    for (int m = 0; m < chunks; ++m) {
      const double load = options.tiers[0].latency_s + (chunks - m) * options.tiers[0].chunk_s;
      best = std::min(best, std::max(ComputeSeconds(0, m), load));
    }
    return best;
  }
};

inline Scenario RandomScenario(int seed, bool holes) {
  std::mt19937 rng(seed);
  Scenario s;
  s.options.seed = seed;
  s.options.compute = RandomCompute(rng);
  s.chunks = static_cast<int>(LogUniform(rng, 1, 201));
  SimTierOptions tier;
  const double per_chunk = s.ComputeSeconds(0, s.chunks) / s.chunks;
  tier.chunk_s = per_chunk * LogUniform(rng, 1.0 / 64, 64);
  tier.latency_s = Pick(rng, 0, 1) * tier.chunk_s * LogUniform(rng, 0.01, 4);
  s.options.tiers = {tier};
  s.held.assign(s.chunks, true);
  if (holes) {
    const int kind = Pick(rng, 0, 2);
    const int prefix = Pick(rng, 0, s.chunks);
    for (int i = 0; i < s.chunks; ++i) {
      if (kind == 0) s.held[i] = i < prefix;                           // an unseen suffix
      if (kind == 1) s.held[i] = Pick(rng, 0, 9) != 0;                 // scattered holes
      if (kind == 2) s.held[i] = i >= prefix || Pick(rng, 0, 1) == 0;  // an evicted front
    }
  }
  return s;
}

inline void CheckAddsUp(const SimOutcome& outcome) {
  int loaded = 0;
  for (const auto& [tier, tokens] : outcome.report.tokens_loaded) loaded += tokens;
  EXPECT_EQ(outcome.report.tokens_computed + loaded + outcome.report.tokens_reused,
            outcome.report.prompt_tokens);
}

struct Summary {
  double mean = 0, worst = 0;
};

inline Summary Summarise(const std::vector<double>& ratios) {
  return {.mean = std::accumulate(ratios.begin(), ratios.end(), 0.0) / ratios.size(),
          .worst = *std::max_element(ratios.begin(), ratios.end())};
}

}  // namespace kvcake::testing_util
