// Thousands of restorations in simulated time, through the real classes.
#include "sim/simulator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <string>

#include "sim/simulator_testing.h"

namespace kvcake {
namespace {

using namespace testing_util;

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

// As on a device, where a slice takes about as long whatever its length: computing on through what
// is stored may be quicker than waiting for it.
TEST(SimulatorTest, NorWhereASliceCostsMoreThanItsTokens) {
  double worst = 0;
  for (int seed = 0; seed < 600; ++seed) {
    Scenario s = RandomScenario(seed, /*holes=*/true);
    std::mt19937 rng(seed);
    s.options.compute.c0 = LogUniform(rng, 5e-3, 100e-3);
    s.options.slice_tokens = 128 << Pick(rng, 2, 4);
    s.options.restorer.planner.compute_gain_min_s = 0;
    const double cake = s.Seconds(Policy::kCake);
    const double ratio = cake / std::min(s.Seconds(Policy::kCompute), s.Seconds(Policy::kLoad));
    worst = std::max(worst, ratio);
    EXPECT_LE(ratio, 1.02) << "seed " << seed << " chunks " << s.chunks;
  }
  std::printf("dear slices: worst cake / min(compute, load) %.4f\n", worst);
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

// What random runs have met: without it they show nothing of it.
struct Met {
  int done = 0, cancelled = 0, forced = 0;
  int computed = 0, loaded = 0, reused = 0, failed = 0, late = 0;  // restorations with such chunks
  std::map<std::string, int> reasons = {
      {"simulated corruption", 0},    {"simulated miss", 0}, {"nothing has come for too long", 0},
      {"compute got there first", 0}, {"instead of", 0},     {"waiting to hear what is stored", 0},
      {"waiting for a free page", 0}};

  void Add(const SimRequest& request, const SimOutcome& outcome) {
    const RestoreReport& report = outcome.report;
    ++(outcome.done ? done : cancelled);
    forced += outcome.done && request.restore.forced_split;
    computed += report.tokens_computed > 1;
    loaded += report.loaded() > 0;
    reused += report.tokens_reused > 0;
    failed += report.chunks_failed > 0;
    late += std::any_of(report.timeline.begin(), report.timeline.end(),
                        [](const auto& entry) { return entry.outcome == Outcome::kLate; });
    for (auto& [text, count] : reasons) {
      count += std::any_of(
          report.reasons.begin(), report.reasons.end(),
          [&wanted = text](const auto& r) { return r.find(wanted) != std::string::npos; });
    }
  }
  void ExpectAll() const {
    for (const int count : {done, cancelled, forced, computed, loaded, reused, failed, late}) {
      std::printf("%d ", count);
      EXPECT_GT(count, 10) << "done, cancelled, forced, computed, loaded, reused, failed, late";
    }
    for (const auto& [text, count] : reasons) {
      std::printf("\"%s\" %d ", text.c_str(), count);
      EXPECT_GT(count, 10) << text;
    }
    std::printf("\n");
  }
};

// Several restorations that share documents, tiers that fail, stall and miss, hang, answer late or
// in spite of being cancelled, requests cancelled, chunks published by others, often a pool without
// a page to spare. Run itself checks order, contents, ownership and leaks.
TEST(SimulatorTest, EveryRunEndsWhateverFails) {
  uint64_t turns = 0;
  Met met;
  for (int seed = 0; seed < 1500; ++seed) {
    std::mt19937 rng(seed);
    SimOptions options = Checked();
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
    const auto outcomes = sim.Run(requests);
    for (size_t i = 0; i < outcomes.size(); ++i) {
      ASSERT_TRUE(outcomes[i].done || requests[i].cancel_s) << "seed " << seed;
      if (outcomes[i].done) CheckAddsUp(outcomes[i]);
      met.Add(requests[i], outcomes[i]);
    }
    turns += sim.turns();
  }
  std::printf("%llu turns\n", static_cast<unsigned long long>(turns));
  met.ExpectAll();
}

TEST(SimulatorTest, ThePagesOfThePromptAreEnough) {
  for (int seed = 0; seed < 100; ++seed) {
    std::mt19937 rng(seed);
    SimOptions options = Checked();
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
    SimOptions options = Checked();
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
  SimOptions options = Checked();
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
  SimOptions options = Checked();
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
  SimOptions options = Checked();
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
    SimOptions options = Checked();
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
  SimOptions options = Checked();
  options.compute = {.c0 = 1e-3, .b = 70e-6, .samples = 1};
  options.tiers = {{.chunk_s = 1e-3}};
  options.pages = 8;
  Simulator sim(options);
  for (const ChunkKey& key : sim.Keys(1, 8)) sim.tier(0).Hold(key);
  PageTable taken;
  for (int i = 0; i < 8; ++i) taken.push_back(std::move(*sim.pool().Draw()));
  auto restoration = sim.restorer().Open(sim.Request(1, 8, Policy::kLoad));
  const ComputeTurn turn = restoration->NextTurn({.chunks = 4});
  EXPECT_EQ(turn.kind, ComputeTurn::Kind::kWait);
  EXPECT_LE((turn.wait_until - sim.clock().Now()).count(), 0.05);
}

}  // namespace
}  // namespace kvcake
