// Thousands of restorations in simulated time, through the real classes.
#include "cake/simulator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace kvcake {
namespace {

double LogUniform(std::mt19937& rng, double low, double high) {
  return std::exp(std::uniform_real_distribution<double>(std::log(low), std::log(high))(rng));
}

int Pick(std::mt19937& rng, int low, int high) {
  return std::uniform_int_distribution<int>(low, high)(rng);
}

// One chunk at position 0 takes 10 ms to compute, within a few times more at the end.
ComputeFit RandomCompute(std::mt19937& rng) {
  ComputeFit fit{.c0 = LogUniform(rng, 1e-5, 3e-3), .samples = 1};
  fit.b = (10e-3 - fit.c0) / 128;
  fit.a = fit.b * LogUniform(rng, 1e-6, 3e-4);
  fit.g = Pick(rng, 0, 1) * fit.b * 1e-3;
  return fit;
}

struct Scenario {
  SimOptions options;
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

Scenario RandomScenario(int seed, bool holes) {
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

void CheckAddsUp(const SimOutcome& outcome) {
  int loaded = 0;
  for (const auto& [tier, tokens] : outcome.report.tokens_loaded) loaded += tokens;
  EXPECT_EQ(outcome.report.tokens_computed + loaded + outcome.report.tokens_reused,
            outcome.report.prompt_tokens);
}

TEST(SimulatorTest, NeverLosesToTheBetterOfComputeAndLoad) {
  for (const bool holes : {false, true}) {
    double worst = 0;
    std::vector<double> efficiency;
    for (int seed = 0; seed < 1000; ++seed) {
      Scenario s = RandomScenario(seed, holes);
      s.options.restorer.planner.compute_gain_min_s = 0;  // lanes that cost each other nothing
      SimOutcome outcome;
      const double cake = s.Seconds(Policy::kCake, &outcome);
      const double compute = s.Seconds(Policy::kCompute), load = s.Seconds(Policy::kLoad);
      CheckAddsUp(outcome);
      const double ratio = cake / std::min(compute, load);
      worst = std::max(worst, ratio);
      EXPECT_LE(ratio, 1.02) << "seed " << seed << " chunks " << s.chunks << " cake " << cake
                             << " compute " << compute << " load " << load << " chunk_s "
                             << s.options.tiers[0].chunk_s << " latency "
                             << s.options.tiers[0].latency_s << " c0 " << s.options.compute.c0;
      if (!holes) efficiency.push_back(s.BestSplit() / cake);
    }
    std::printf("holes %d: worst cake / min(compute, load) %.4f\n", holes, worst);
    if (holes) continue;
    std::sort(efficiency.begin(), efficiency.end());
    const double mean = std::accumulate(efficiency.begin(), efficiency.end(), 0.0) / 1000;
    std::printf("efficiency against the best whole-chunk split: mean %.4f, 5%% %.4f, worst %.4f\n",
                mean, efficiency[50], efficiency[0]);
    EXPECT_GE(mean, 0.999);
    EXPECT_GE(efficiency[0], 0.99);
  }
}

struct Summary {
  double mean = 0, worst = 0;
};

Summary Summarise(const std::vector<double>& ratios) {
  return {.mean = std::accumulate(ratios.begin(), ratios.end(), 0.0) / ratios.size(),
          .worst = *std::max_element(ratios.begin(), ratios.end())};
}

// Slices and reads vary: the fits are right on average only.
TEST(SimulatorTest, NoiseCostsLittle) {
  std::vector<double> ratios;
  for (int seed = 0; seed < 600; ++seed) {
    Scenario s = RandomScenario(seed, /*holes=*/seed % 2 == 1);
    s.options.compute_jitter = 0.15;
    s.options.tiers[0].jitter = 0.3;
    const double cake = s.Seconds(Policy::kCake);
    ratios.push_back(cake / std::min(s.Seconds(Policy::kCompute), s.Seconds(Policy::kLoad)));
  }
  const Summary summary = Summarise(ratios);
  std::printf("noise: cake / min(compute, load): mean %.4f, worst %.4f\n", summary.mean,
              summary.worst);
  EXPECT_LE(summary.mean, 0.93);
  EXPECT_LE(summary.worst, 1.15);  // one slice of 15% luck: the three runs draw different noise
}

// The first prompt of a process, and a first read of a tier whose speed nobody knows.
TEST(SimulatorTest, WhatIsNotKnownYetCostsABoundedTime) {
  std::vector<double> cold, new_tier;
  for (int seed = 0; seed < 600; ++seed) {
    const Scenario s = RandomScenario(seed, /*holes=*/false);
    const double better = std::min(s.Seconds(Policy::kCompute), s.Seconds(Policy::kLoad));
    const double slice_s = s.ComputeSeconds(0, std::min(4, s.chunks));
    const double chunk_s = s.ComputeSeconds(s.chunks - 1, s.chunks);
    const double blind = s.Seconds(Policy::kCake, nullptr, /*trained=*/false);
    // A first slice that the loads overtook, then all is known or soon will be.
    EXPECT_LE(blind, better * 1.25 + slice_s + 3 * chunk_s) << "seed " << seed;
    cold.push_back(blind / better);

    Simulator sim(s.options);
    for (int chunks = 1; chunks <= 4; ++chunks) {
      for (int prefix : {0, 2048, 8192}) {
        sim.cost().Add(prefix, chunks * 128,
                       Seconds(s.options.compute.SecondsFor(prefix, chunks * 128)));
      }
    }
    for (const ChunkKey& key : sim.Keys(1, s.chunks)) sim.tier(0).Hold(key);
    const auto outcome =
        sim.Run({{.restore = sim.Request(1, s.chunks, Policy::kCake), .cancel_s = {}}})[0];
    EXPECT_LE(outcome.seconds, better * 1.25 + 3 * chunk_s) << "seed " << seed;
    new_tier.push_back(outcome.seconds / better);
  }
  const Summary a = Summarise(cold), b = Summarise(new_tier);
  std::printf("nothing known: mean %.3f, worst %.3f; tier not known: mean %.3f, worst %.3f\n",
              a.mean, a.worst, b.mean, b.worst);
}

// Tiers of any speeds, each with some of the chunks: all of them together are never slower than the
// best of them, nor than compute.
struct TiersScenario {
  SimOptions options;
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

TEST(SimulatorTest, SeveralTiersAreNeverSlowerThanTheBestOfThem) {
  double worst = 0, worst_load = 0;
  std::vector<double> cake_ratios;
  for (int seed = 0; seed < 400; ++seed) {
    const TiersScenario s = RandomTiers(seed);
    const uint32_t all = (1u << s.held.size()) - 1;
    const double cake = s.Seconds(Policy::kCake, all) / s.BestAlone(Policy::kCake);
    EXPECT_LE(cake, 1.02) << "seed " << seed;
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
    EXPECT_LE(load, 1.02) << "seed " << seed;
    worst_load = std::max(worst_load, load);
  }
  const Summary summary = Summarise(cake_ratios);
  std::printf("several tiers / the best alone: mean %.4f, worst %.4f; load only: worst %.4f\n",
              summary.mean, worst, worst_load);
  EXPECT_LE(summary.mean, 0.9) << "they add up";
}

// A second tier whose speed nobody knows, or that stops answering in the middle, costs little.
TEST(SimulatorTest, AnUnknownOrStalledSecondTierCostsLittle) {
  double worst_unknown = 0, worst_stalled = 0;
  for (int seed = 0; seed < 300; ++seed) {
    std::mt19937 rng(seed);
    SimOptions options;
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
TEST(SimulatorTest, WhatTiersSayLateIsUsedStill) {
  for (const double look_s : {1e-3, 20e-3, 0.2}) {
    for (int seed = 0; seed < 100; ++seed) {
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

TEST(SimulatorTest, ATierThatNeverSaysWhatItHoldsCostsOneTimeOut) {
  SimOptions options;
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

// Several restorations that share documents, tiers that fail, stall and miss, requests cancelled,
// hang, answer late or in spite of being cancelled, requests cancelled, chunks published by others,
// often a pool without a page to spare. Run itself checks order, contents, ownership and leaks.
TEST(SimulatorTest, EveryRunEndsWhateverFails) {
  uint64_t turns = 0;
  for (int seed = 0; seed < 1500; ++seed) {
    std::mt19937 rng(seed);
    SimOptions options;
    options.seed = seed;
    options.compute = RandomCompute(rng);
    options.compute_jitter = 0.2;
    options.restorer.stall_timeout = Seconds(0.5);
    options.restorer.probe_interval = Seconds(2);
    options.publish_share = Pick(rng, 0, 2) * 0.1;
    const bool hangs = Pick(rng, 0, 3) == 0;
    const int tiers = Pick(rng, 0, 2);
    for (int t = 0; t < tiers; ++t) {
      options.tiers.push_back({.name = t == 0 ? "disk" : "redis",
                               .chunk_s = 10e-3 * LogUniform(rng, 1.0 / 64, 64),
                               .latency_s = Pick(rng, 0, 1) * 5e-3,
                               .jitter = 0.3,
                               .fail_share = Pick(rng, 0, 2) * 0.1,
                               .missing_share = Pick(rng, 0, 2) * 0.1,
                               .stall_share = Pick(rng, 0, 3) == 0 ? 0.05 : 0.0,
                               .hang_share = hangs ? 0.05 : 0.0,
                               .cancel_slow_share = Pick(rng, 0, 2) * 0.5,
                               .cancel_ignored_share = Pick(rng, 0, 2) * 0.3,
                               .look_s = Pick(rng, 0, 2) * 10e-3,
                               .reads_max = Pick(rng, 1, 16)});
    }
    std::vector<SimRequest> requests;
    const int documents = Pick(rng, 1, 3);
    const int count = Pick(rng, 1, 8);
    // Documents are shared, so this is what everybody together needs; hung reads keep theirs.
    const bool scarce = Pick(rng, 0, 1) == 0;
    options.pages = scarce ? 40 * documents + (hangs ? 16 * tiers : 0) : 40 * count + 32;
    Simulator sim(options);
    if (Pick(rng, 0, 1) == 0) {
      for (int i = 0; i < 5; ++i) {
        sim.cost().Add(i * 512, 512, Seconds(options.compute.SecondsFor(i * 512, 512)));
      }
    }
    for (int t = 0; t < tiers; ++t) {
      for (int d = 0; d < documents; ++d) {
        for (const ChunkKey& key : sim.Keys(d, 40)) {
          if (Pick(rng, 0, 4) != 0) sim.tier(t).Hold(key);
        }
      }
    }
    for (int i = 0; i < count; ++i) {
      const auto policy =
          Pick(rng, 0, 3) == 0 ? static_cast<Policy>(Pick(rng, 0, 2)) : Policy::kCake;
      SimRequest request{
          .restore = sim.Request(Pick(rng, 0, documents - 1), Pick(rng, 0, 40), policy),
          .at_s = Pick(rng, 0, 1) * LogUniform(rng, 1e-3, 1),
          .cancel_s = {}};
      if (Pick(rng, 0, 3) == 0) request.cancel_s = request.at_s + LogUniform(rng, 1e-3, 1);
      if (policy == Policy::kCake && Pick(rng, 0, 4) == 0) {
        request.restore.forced_split = Pick(rng, 0, 40);
      }
      requests.push_back(std::move(request));
    }
    for (const auto& [outcome, request] : [&] {
           std::vector<std::pair<SimOutcome, SimRequest>> both;
           const auto outcomes = sim.Run(requests);
           for (size_t i = 0; i < outcomes.size(); ++i) both.emplace_back(outcomes[i], requests[i]);
           return both;
         }()) {
      ASSERT_TRUE(outcome.done || request.cancel_s) << "seed " << seed;
      if (outcome.done) CheckAddsUp(outcome);
    }
    turns += sim.turns();
  }
  std::printf("%llu turns\n", static_cast<unsigned long long>(turns));
}

TEST(SimulatorTest, ThePagesOfThePromptAreEnough) {
  for (int seed = 0; seed < 100; ++seed) {
    std::mt19937 rng(seed);
    SimOptions options;
    options.seed = seed;
    options.compute = RandomCompute(rng);
    options.tiers = {{.chunk_s = 10e-3 * LogUniform(rng, 1.0 / 16, 16),
                      .fail_share = 0.1,
                      .cancel_slow_share = 0.5,
                      .cancel_ignored_share = 0.2}};
    options.pages = 20;
    Simulator sim(options);
    for (const ChunkKey& key : sim.Keys(1, 20)) sim.tier(0).Hold(key);
    const auto policy = static_cast<Policy>(seed % 3);
    EXPECT_TRUE(sim.Run({{.restore = sim.Request(1, 20, policy), .cancel_s = {}}})[0].done);
  }
}

// Ten requests on one document restore it once.
TEST(SimulatorTest, OneDocumentIsRestoredOnce) {
  for (const double chunk_s : {1e-3, 10e-3, 100e-3}) {
    SimOptions options;
    options.compute = {.c0 = 1e-3, .b = 70e-6, .samples = 1};
    options.tiers = {{.chunk_s = chunk_s}};
    options.pages = 400;
    Simulator sim(options);
    sim.Train();
    for (const ChunkKey& key : sim.Keys(1, 30)) sim.tier(0).Hold(key);
    const auto alone = sim.Run({{.restore = sim.Request(1, 30, Policy::kCake), .cancel_s = {}}})[0];
    std::vector<SimRequest> requests(
        10, {.restore = sim.Request(1, 30, Policy::kCake), .cancel_s = {}});
    requests[0].cancel_s = alone.seconds / 2;  // subscribers take over
    int made = 0, reads = 0;
    const uint64_t gets = sim.tier(0).gets();
    const auto outcomes = sim.Run(requests);
    // Each chunk once, and what was in flight when compute got there or its owner left.
    EXPECT_LE(sim.tier(0).gets() - gets, 30u + 4u);
    for (const SimOutcome& outcome : outcomes) {
      if (outcome.done) {
        CheckAddsUp(outcome);
        EXPECT_LE(outcome.seconds, 1.3 * alone.seconds + 50e-3);
      }
      made += outcome.report.tokens_computed - outcome.done;  // the last token is not a chunk's
      for (const auto& [tier, tokens] : outcome.report.tokens_loaded) reads += tokens;
    }
    EXPECT_LE(made + reads, 30 * 128) << "what the cancelled one has made is not in its report";
    EXPECT_GE(made + reads, 10 * 128);
  }
}

TEST(SimulatorTest, ForcedSplitsComputeExactlyTheirPart) {
  SimOptions options;
  options.compute = {.c0 = 1e-3, .b = 70e-6, .samples = 1};
  options.tiers = {{.chunk_s = 7e-3}};
  Simulator sim(options);
  for (const ChunkKey& key : sim.Keys(1, 20)) sim.tier(0).Hold(key);
  for (int split = 0; split <= 20; ++split) {
    SimRequest request{.restore = sim.Request(1, 20, Policy::kCake), .cancel_s = {}};
    request.restore.forced_split = split;
    const SimOutcome outcome = sim.Run({request})[0];
    EXPECT_EQ(outcome.report.tokens_computed, split * 128 + 1);
    EXPECT_EQ(outcome.report.meeting_token, split == 20 ? 20 * 128 + 1 : split * 128);
  }
}

TEST(SimulatorTest, PagesInMemoryAreReused) {
  SimOptions options;
  options.compute = {.c0 = 1e-3, .b = 70e-6, .samples = 1};
  Simulator sim(options);
  SimRequest late{.restore = sim.Request(1, 20, Policy::kCake), .at_s = 5, .cancel_s = {}};
  const auto outcomes =
      sim.Run({{.restore = sim.Request(1, 8, Policy::kCompute), .cancel_s = {}}, late});
  EXPECT_EQ(outcomes[0].report.tokens_computed, 8 * 128 + 1);
  EXPECT_EQ(outcomes[1].report.tokens_reused, 8 * 128);
  EXPECT_EQ(outcomes[1].report.tokens_computed, 12 * 128 + 1);
}

// A tier that goes silent costs time only, even when loading was all the policy wanted.
TEST(SimulatorTest, AStalledTierIsGivenUp) {
  SimOptions options;
  options.compute = {.c0 = 1e-3, .b = 70e-6, .samples = 1};
  options.tiers = {{.chunk_s = 1e-3, .stall_share = 1}};
  Simulator sim(options);
  for (const ChunkKey& key : sim.Keys(1, 20)) sim.tier(0).Hold(key);
  for (Policy policy : {Policy::kCake, Policy::kLoad}) {
    const auto outcome = sim.Run({{.restore = sim.Request(1, 20, policy), .cancel_s = {}}})[0];
    EXPECT_TRUE(outcome.done);
    EXPECT_EQ(outcome.report.tokens_computed, 20 * 128 + 1);
    EXPECT_LT(outcome.seconds, 40);
  }
}

// The reads of a request that went on without them keep the link busy for the next one.
TEST(SimulatorTest, HungReadsOfAnEarlierRequestCostTheNextOneLittle) {
  for (const double chunk_s : {0.1e-3, 1e-3, 5e-3}) {
    SimOptions options;
    options.compute = {.c0 = 1e-3, .b = 70e-6, .samples = 1};
    options.tiers = {{.chunk_s = chunk_s}};
    Simulator sim(options);
    sim.Train();
    for (int document : {1, 2}) {
      for (const ChunkKey& key : sim.Keys(document, 40)) sim.tier(0).Hold(key);
    }
    sim.tier(0).options().hang_share = 1;
    const auto outcomes =
        sim.Run({{.restore = sim.Request(1, 40, Policy::kCake), .cancel_s = {}},
                 {.restore = sim.Request(2, 40, Policy::kCake), .at_s = 2, .cancel_s = {}}});
    const double compute_s = 10 * options.compute.SecondsFor(0, 4 * 128);
    for (const SimOutcome& outcome : outcomes) {
      EXPECT_TRUE(outcome.done);
      EXPECT_LE(outcome.seconds, 2.1 * compute_s + 0.05);
    }
  }
}

// A store whose chunks are all bad costs a few reads, not one per chunk.
TEST(SimulatorTest, AStoreThatFailsCostsLittle) {
  for (const bool known : {false, true}) {
    double worst = 0;
    for (int seed = 0; seed < 300; ++seed) {
      Scenario s = RandomScenario(seed, /*holes=*/false);
      const double compute_s = s.Seconds(Policy::kCompute);
      Simulator sim(s.options);
      if (known) sim.Train();
      for (int i = 0; i < 5; ++i) {
        sim.cost().Add(i * 512, 512, Seconds(s.options.compute.SecondsFor(i * 512, 512)));
      }
      for (const ChunkKey& key : sim.Keys(1, s.chunks)) sim.tier(0).Hold(key);
      sim.tier(0).options().fail_share = 1;
      const auto outcome =
          sim.Run({{.restore = sim.Request(1, s.chunks, Policy::kCake), .cancel_s = {}}})[0];
      EXPECT_TRUE(outcome.done);
      EXPECT_LE(outcome.report.chunks_failed, 4 + 8);
      const double chunk_s = s.ComputeSeconds(s.chunks - 1, s.chunks);
      EXPECT_LE(outcome.seconds, 1.01 * compute_s + (known ? 2 : 6) * chunk_s) << "seed " << seed;
      worst = std::max(worst, (outcome.seconds - compute_s) / chunk_s);
    }
    std::printf("failing store (speed known: %d): at most %.2f chunks of compute lost\n", known,
                worst);
  }
}

// With every page taken, a restoration that only loads asks again soon.
TEST(SimulatorTest, LoadingGoesOnSoonAfterAPageIsFree) {
  SimOptions options;
  options.compute = {.c0 = 1e-3, .b = 70e-6, .samples = 1};
  options.tiers = {{.chunk_s = 1e-3}};
  options.pages = 8;
  Simulator sim(options);
  for (const ChunkKey& key : sim.Keys(1, 8)) sim.tier(0).Hold(key);
  PageTable taken;
  for (int i = 0; i < 8; ++i) taken.push_back(std::move(*sim.pool().Draw()));
  auto restoration = sim.restorer().Open(sim.Request(1, 8, Policy::kLoad));
  const ComputeTurn turn = restoration->NextTurn(4);
  EXPECT_EQ(turn.kind, ComputeTurn::Kind::kWait);
  EXPECT_LE((turn.wait_until - sim.clock().Now()).count(), 0.05);
}

}  // namespace
}  // namespace kvcake
