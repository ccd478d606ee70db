// Restorations in simulated time from several tiers, and from tiers that say late what they hold.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <limits>
#include <string>

#include "sim/simulator_testing.h"

namespace kvcake {
namespace {

using namespace testing_util;

// Tiers of any speeds, each with some of the chunks: all of them together are never slower than the
// best of them, nor than compute.
struct TiersScenario {
  SimOptions options = Checked();
  int chunks = 0;
  std::vector<std::vector<bool>> held;  // [tier][chunk]

  // With the tiers of `use` only; the others hold nothing.
  double Seconds(Policy policy, uint32_t use, bool trained = true) const {
    Simulator sim(options);
    if (trained) sim.Train();
    const auto keys = sim.Keys(1, chunks);
    for (size_t t = 0; t < held.size(); ++t) {
      for (int i = 0; i < chunks; ++i) {
        if ((use >> t & 1) != 0 && held[t][i]) sim.tier(static_cast<int>(t)).Hold(keys[i]);
      }
    }
    const auto outcome = sim.Run({{.restore = sim.Request(1, chunks, policy), .cancel_s = {}}})[0];
    EXPECT_TRUE(outcome.done);
    CheckAddsUp(outcome);
    return outcome.seconds;
  }
  double BestAlone(Policy policy) const {
    double best = Seconds(policy, 0);  // by compute
    for (size_t t = 0; t < held.size(); ++t) best = std::min(best, Seconds(policy, 1u << t));
    return best;
  }
};

TiersScenario RandomTiers(int seed) {
  std::mt19937 rng(seed);
  TiersScenario s;
  s.options.seed = seed;
  s.options.compute = RandomCompute(rng);
  s.options.restorer.planner.compute_gain_min_s = 0;
  s.options.restorer.probe_interval = Seconds(1e9);  // what training taught is still true
  s.chunks = static_cast<int>(LogUniform(rng, 4, 151));
  const int tiers = Pick(rng, 2, 3);
  for (int t = 0; t < tiers; ++t) {
    SimTierOptions tier{.name = "tier" + std::to_string(t),
                        .chunk_s = 10e-3 * LogUniform(rng, 1.0 / 32, 32)};
    tier.latency_s = Pick(rng, 0, 1) * tier.chunk_s * LogUniform(rng, 0.01, 4);
    s.options.tiers.push_back(tier);
    std::vector<bool> held(s.chunks, true);
    const int kind = Pick(rng, 0, 3), prefix = Pick(rng, 0, s.chunks);
    for (int i = 0; i < s.chunks; ++i) {
      if (kind == 1) held[i] = Pick(rng, 0, 1) == 0;
      if (kind == 2) held[i] = i < prefix;
      if (kind == 3) held[i] = i >= prefix;
    }
    s.held.push_back(std::move(held));
  }
  return s;
}

std::string Describe(const TiersScenario& s) {
  std::string text = ": " + std::to_string(s.chunks) + " chunks";
  for (size_t t = 0; t < s.held.size(); ++t) {
    const SimTierOptions& tier = s.options.tiers[t];
    text += "; " + std::to_string(tier.chunk_s) + " s each after " +
            std::to_string(tier.latency_s) + " s: ";
    for (const bool held : s.held[t]) text += held ? '#' : '.';
  }
  return text;
}

TEST(SimulatorTiersTest, SeveralTiersAreNeverSlowerThanTheBestOfThem) {
  double worst = 0, worst_load = 0;
  std::vector<double> cake_ratios;
  for (int seed = 0; seed < 200; ++seed) {
    const TiersScenario s = RandomTiers(seed);
    const uint32_t all = (1u << s.held.size()) - 1;
    const double cake = s.Seconds(Policy::kCake, all) / s.BestAlone(Policy::kCake);
    EXPECT_LE(cake, 1.02) << "seed " << seed << Describe(s);
    worst = std::max(worst, cake);
    cake_ratios.push_back(cake);
    // Loading only: chunks that one tier lacks are computed, so it is not the sum of its parts;
    // where every tier has every chunk it must not lose either.
    const bool full = std::all_of(s.held.begin(), s.held.end(), [](const auto& held) {
      return std::all_of(held.begin(), held.end(), [](bool h) { return h; });
    });
    if (!full) continue;
    double best = s.Seconds(Policy::kLoad, 1);
    for (size_t t = 1; t < s.held.size(); ++t) {
      best = std::min(best, s.Seconds(Policy::kLoad, 1u << t));
    }
    const double load = s.Seconds(Policy::kLoad, all) / best;
    EXPECT_LE(load, 1.02) << "seed " << seed << Describe(s);
    worst_load = std::max(worst_load, load);
  }
  const Summary summary = Summarise(cake_ratios);
  std::printf("several tiers / the best alone: mean %.4f, worst %.4f; load only: worst %.4f\n",
              summary.mean, worst, worst_load);
  EXPECT_LE(summary.mean, 0.9) << "they add up";
}

// As published both lanes go on until they meet, whatever is where: a plan that knows all speeds
// has to be as good, but for a few short prompts of which slices of single chunks are computed.
TEST(SimulatorTiersTest, SeveralTiersArePlannedAtLeastAsWellAsWithoutAPlan) {
  std::vector<double> ratios;
  std::string slower;
  for (int seed = 0; seed < 400; ++seed) {
    const TiersScenario s = RandomTiers(seed);
    const uint32_t all = (1u << s.held.size()) - 1;
    ratios.push_back(s.Seconds(Policy::kCake, all) / s.Seconds(Policy::kPublished, all));
    if (ratios.back() > 1.06) slower += "seed " + std::to_string(seed) + Describe(s) + "\n";
  }
  const Summary summary = Summarise(ratios);
  std::printf("several tiers / as published: mean %.4f, worst %.4f\n", summary.mean, summary.worst);
  EXPECT_LE(summary.mean, 0.76);
  EXPECT_LE(summary.worst, 1.2);
  EXPECT_LE(std::count(slower.begin(), slower.end(), '\n'), 3) << slower;
}

// A second tier whose speed nobody knows, or that stops answering in the middle, costs little.
TEST(SimulatorTiersTest, AnUnknownOrStalledSecondTierCostsLittle) {
  double worst_unknown = 0, worst_stalled = 0;
  for (int seed = 0; seed < 150; ++seed) {
    std::mt19937 rng(seed);
    SimOptions options = Checked();
    options.seed = seed;
    options.compute = RandomCompute(rng);
    options.restorer.planner.compute_gain_min_s = 0;
    options.tiers = {{.name = "fast", .chunk_s = 10e-3 * LogUniform(rng, 1.0 / 16, 1)},
                     {.name = "slow", .chunk_s = 10e-3 * LogUniform(rng, 1.0 / 4, 64)}};
    const int chunks = Pick(rng, 8, 100);
    const auto run = [&](bool second, bool stalls) {
      Simulator sim(options);
      for (int prefix : {0, 2048, 8192}) {
        for (int n = 1; n <= 4; ++n) {
          sim.cost().Add(prefix, n * 128, Seconds(options.compute.SecondsFor(prefix, n * 128)));
        }
      }
      const auto teach = sim.Keys(7, 40);
      for (const ChunkKey& key : teach) {
        sim.tier(0).Hold(key);
        if (stalls) sim.tier(1).Hold(key);
      }
      sim.Run({{.restore = sim.Request(7, 40, Policy::kLoad), .cancel_s = {}}});
      if (stalls) sim.tier(1).options().stall_share = 1;
      for (const ChunkKey& key : sim.Keys(1, chunks)) {
        sim.tier(0).Hold(key);
        if (second) sim.tier(1).Hold(key);
      }
      const auto outcome =
          sim.Run({{.restore = sim.Request(1, chunks, Policy::kCake), .cancel_s = {}}})[0];
      EXPECT_TRUE(outcome.done);
      return outcome.seconds;
    };
    const double alone = run(false, false);
    const double chunk_s = options.compute.SecondsFor((chunks - 1) * 128, 128);
    const double unknown = run(true, false), stalled = run(true, true);
    EXPECT_LE(unknown, 1.02 * alone + 2 * chunk_s) << "seed " << seed;
    EXPECT_LE(stalled, 1.5 * alone + 4 * chunk_s) << "seed " << seed;
    worst_unknown = std::max(worst_unknown, (unknown - alone) / chunk_s);
    worst_stalled = std::max(worst_stalled, stalled / alone);
  }
  std::printf("second tier unknown: at most %.2f chunks of compute lost; stalled: %.2fx\n",
              worst_unknown, worst_stalled);
}

// What is stored comes to light while compute goes on; it is as good as known soon after.
TEST(SimulatorTiersTest, WhatTiersSayLateIsUsedStill) {
  for (const double look_s : {1e-3, 20e-3, 0.2}) {
    for (int seed = 0; seed < 60; ++seed) {
      Scenario s = RandomScenario(seed, /*holes=*/true);
      const double compute_s = s.Seconds(Policy::kCompute);
      const double known_s = s.Seconds(Policy::kCake);
      const double slice_s = s.ComputeSeconds(0, std::min(4, s.chunks));
      Simulator sim(s.options);
      sim.Train();
      const auto keys = sim.Keys(1, s.chunks);
      for (int i = 0; i < s.chunks; ++i) {
        if (s.held[i]) sim.tier(0).Hold(keys[i]);
      }
      sim.tier(0).options().look_s = look_s;
      SimOutcome outcome;
      const auto run = [&](Policy policy) {
        return sim.Run({{.restore = sim.Request(1, s.chunks, policy), .cancel_s = {}}})[0];
      };
      outcome = run(Policy::kCake);
      CheckAddsUp(outcome);
      // The last slice begun in ignorance, and the look itself if it was worth waiting for.
      EXPECT_LE(outcome.seconds,
                std::min(compute_s * 1.01 + 5e-3, known_s * 1.02 + look_s) + 2 * slice_s)
          << "seed " << seed << " look " << look_s;
      // Who only loads waits to hear what there is: as much is loaded as if it had been known.
      SimOutcome known;
      s.Seconds(Policy::kLoad, &known);
      outcome = run(Policy::kLoad);
      EXPECT_EQ(outcome.report.loaded(), known.report.loaded());
    }
  }
}

TEST(SimulatorTiersTest, ATierThatNeverSaysWhatItHoldsCostsOneTimeOut) {
  SimOptions options = Checked();
  options.compute = {.c0 = 1e-3, .b = 70e-6, .samples = 1};
  options.tiers = {{.name = "hung", .chunk_s = 1e-3}, {.name = "good", .chunk_s = 1e-3}};
  options.restorer.stall_timeout = Seconds(1);
  Simulator sim(options);
  sim.Train();
  sim.tier(0).options().look_s = std::numeric_limits<double>::infinity();
  for (int document = 1; document <= 3; ++document) {
    for (const ChunkKey& key : sim.Keys(document, 40)) sim.tier(1).Hold(key);
  }
  const double compute_s = 10 * options.compute.SecondsFor(0, 4 * 128);
  std::vector<SimRequest> requests;
  for (int document = 1; document <= 3; ++document) {
    const Policy policy = document == 1 ? Policy::kCake : Policy::kLoad;
    requests.push_back(
        {.restore = sim.Request(document, 40, policy), .at_s = 5.0 * document, .cancel_s = {}});
  }
  const auto outcomes = sim.Run(requests);
  EXPECT_LE(outcomes[0].seconds, compute_s + 5e-3) << "compute began at once";
  EXPECT_LE(outcomes[1].seconds, 1 + compute_s) << "the one time-out";
  EXPECT_LE(outcomes[2].seconds, compute_s) << "it is known to be dead";
}

}  // namespace
}  // namespace kvcake
