#include "cake/tier_splits.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <random>

#include "cake/split_search_testing.h"

namespace kvcake {
namespace {

using State = ChunkView::State;
using testing_util::FinishOf;
using testing_util::kExact;
using testing_util::LeastOfChoices;

// Chunks of 10 ms, one a slice; a tier for each interval.
PlanInput Input(const std::vector<double>& intervals_s) {
  PlanInput input;
  input.slice_chunks_max = 1;
  input.compute = {.b = 10e-3 / 128, .samples = 10};
  for (double interval_s : intervals_s) {
    input.tiers.push_back({.known = true, .interval_s = interval_s});
  }
  return input;
}

// The front is on a tier that loads two chunks while one is computed, the rest on a slow one.
PlanInput FastThenSlow() {
  PlanInput input = Input({5e-3, 20e-3});
  for (int i = 0; i < 24; ++i) input.chunks.push_back({.tiers = i < 12 ? 1u : 2u});
  return input;
}

// Some chunks are held by some tiers, some are resident or in flight.
PlanInput RandomInput(std::mt19937& rng, int tiers, int chunks) {
  std::uniform_real_distribution<double> uniform(0, 1);
  std::vector<double> intervals_s;
  for (int t = 0; t < tiers; ++t) intervals_s.push_back(1e-3 + 40e-3 * uniform(rng));
  PlanInput input = Input(intervals_s);
  input.compute.a = 10e-6 / 128 * uniform(rng);
  input.compute_busy_s = rng() % 2 == 0 ? 0 : 0.02 * uniform(rng);
  for (TierView& tier : input.tiers) tier.drain_s = rng() % 2 == 0 ? 0 : 0.02 * uniform(rng);
  // The first tier has nearly all, the others a run each, or what chance gave them.
  const bool runs = rng() % 2 == 0;
  for (int i = 0; i < chunks; ++i) {
    ChunkView chunk{.tiers = uniform(rng) < 0.9};
    for (int t = 1; t < tiers; ++t) {
      const bool held = runs ? (i * tiers / chunks) == t : rng() % 2 == 0;
      chunk.tiers |= static_cast<uint32_t>(held) << t;
    }
    if (chunk.tiers != 0 && rng() % 8 == 0) chunk.state = State::kResident;
    if (chunk.tiers != 0 && rng() % 16 == 0) {
      chunk.state = State::kInFlight;
      chunk.eta_s = 0.04 * uniform(rng);
    }
    input.chunks.push_back(chunk);
  }
  input.chunks[0].state = State::kAbsent;
  return input;
}

std::vector<int8_t> FromOf(const PlanInput& input, const Splits& splits) {
  std::vector<int8_t> from = splits.tiers;
  for (size_t i = 0; i < from.size(); ++i) {
    const bool in_flight = input.chunks[i].state == State::kInFlight;
    if (splits.sides[i] == Side::kLoad && in_flight) from[i] = 0;
  }
  return from;
}

TEST(TierSplitsTest, WhatOnlyASlowTierHasIsComputedToo) {
  const PlanInput input = FastThenSlow();
  const Splits splits = LeastFinishBySets(input, kExact, 0).value();
  // Four are computed while eight are loaded fast, seven more while five come slowly.
  EXPECT_EQ(std::count(splits.sides.begin(), splits.sides.begin() + 12, Side::kCompute), 4);
  EXPECT_EQ(std::count(splits.sides.begin() + 12, splits.sides.end(), Side::kCompute), 7);
  EXPECT_EQ(splits.sides[3], Side::kCompute);
  EXPECT_EQ(splits.sides[4], Side::kLoad);
  EXPECT_EQ(splits.sides[18], Side::kCompute);
  EXPECT_EQ(splits.sides[19], Side::kLoad);
  EXPECT_NEAR(splits.finish_s, 0.11, 1e-9);
  EXPECT_GT(LeastFinish(input, kExact, 0).finish_s, 0.13) << "one split for both";
}

// Neither split alone gains anything: with one moved the other's tier, or compute, is as late.
TEST(TierSplitsTest, SplitsThatGainOnlyTogetherAreFound) {
  PlanInput input = Input({47e-3, 19e-3});
  input.compute.b = 17e-3 / 128;
  for (int i = 0; i < 48; ++i) input.chunks.push_back({.tiers = i < 36 ? 3u : 1u});
  EXPECT_LE(LeastFinishBySets(input, kExact, 0)->finish_s, 0.43);
}

TEST(TierSplitsTest, ComputeThatIsBusyIsCountedOnLess) {
  PlanInput input = FastThenSlow();
  input.compute_busy_s = 0.1;
  EXPECT_NEAR(LeastFinishBySets(input, kExact, 0)->finish_s, 0.15, 1e-9);
  // The same by chunks that nobody has.
  input = FastThenSlow();
  input.chunks.insert(input.chunks.begin(), 10, {});
  EXPECT_NEAR(LeastFinishBySets(input, kExact, 0)->finish_s, 0.15, 1e-9);
}

TEST(TierSplitsTest, LanesThatHinderEachOtherDoNotRunTogether) {
  PlanInput input = FastThenSlow();
  input.tiers[1].beside_s = 1;
  const Splits splits = LeastFinishBySets(input, kExact, 0).value();
  EXPECT_EQ(std::ranges::count(splits.sides, Side::kCompute), 0);
  EXPECT_NEAR(splits.finish_s, 0.24, 1e-9);
}

TEST(TierSplitsTest, ATierWithChunksOfItsOwnLeavesOthersTheRest) {
  // All of it is on the fast tier, half of it on the slow one as well, which has more of its own.
  PlanInput input = Input({2e-3, 4e-3});
  input.compute.b = 1;  // nothing is worth computing
  for (int i = 0; i < 20; ++i) input.chunks.push_back({.tiers = i < 10 ? 2u : 3u});
  const Splits splits = LeastFinishBySets(input, kExact, 0).value();
  EXPECT_EQ(std::count(splits.tiers.begin() + 10, splits.tiers.end(), 0), 10);
  EXPECT_NEAR(splits.finish_s, 0.04, 1e-9);
}

TEST(TierSplitsTest, OneSetOfTiersIsNotItsBusiness) {
  PlanInput input = Input({5e-3, 20e-3});
  input.chunks.assign(8, {.tiers = 3});
  EXPECT_FALSE(LeastFinishBySets(input, kExact, 0));
  input.chunks[3] = {.tiers = 0};
  EXPECT_FALSE(LeastFinishBySets(input, kExact, 0)) << "a hole is in no set";
  input.chunks[5].tiers = 1;
  EXPECT_TRUE(LeastFinishBySets(input, kExact, 0));
  EXPECT_FALSE(LeastFinishBySets(input, kExact, 6)) << "what is behind it is in one";
}

TEST(TierSplitsTest, ManySetsOfTiersAreNot) {
  PlanInput input = Input(std::vector<double>(9, 5e-3));
  for (int t = 0; t < 8; ++t) input.chunks.push_back({.tiers = 1u << t});
  EXPECT_TRUE(LeastFinishBySets(input, kExact, 0));
  input.chunks.push_back({.tiers = 1u << 8});
  EXPECT_FALSE(LeastFinishBySets(input, kExact, 0));
}

TEST(TierSplitsTest, ComputeMustPromiseAGain) {
  const PlanInput input = FastThenSlow();
  PlannerOptions options = kExact;
  EXPECT_EQ(LeastFinishBySets(input, options, 0)->sides[0], Side::kCompute);
  options.compute_gain_min_s = 1;
  const Splits waiting = LeastFinishBySets(input, options, 0).value();
  EXPECT_EQ(std::count(waiting.sides.begin(), waiting.sides.begin() + 12, Side::kCompute), 0);
  EXPECT_EQ(waiting.sides[12], Side::kCompute)
      << "the other set's are computed once those are there";
}

TEST(TierSplitsTest, WhatIsInFlightIsTakenOverOnlyForAGain) {
  PlanInput input = Input({5e-3, 20e-3});
  input.chunks.assign(2, {.state = State::kInFlight, .tiers = 1});
  input.chunks.resize(4, {.tiers = 2});
  PlannerOptions options = kExact;
  options.take_over_margin_chunks = 0.5;
  for (const double eta_s : {12e-3, 22e-3, 60e-3}) {
    input.chunks[0].eta_s = input.chunks[1].eta_s = eta_s;
    const Splits splits = LeastFinishBySets(input, options, 0).value();
    EXPECT_EQ(splits.sides[0], eta_s > 25e-3 ? Side::kCompute : Side::kLoad) << eta_s;
    EXPECT_EQ(splits.tiers[0], -1) << "it is under way";
  }
}

TEST(TierSplitsTest, TheSplitsTakeWhatIsPromised) {
  std::mt19937 rng(1);
  int several = 0;
  for (int round = 0; round < 400; ++round) {
    SCOPED_TRACE(round);
    const int tiers = 2 + static_cast<int>(rng() % 2);
    const PlanInput input = RandomInput(rng, tiers, 1 + static_cast<int>(rng() % 200));
    const auto splits = LeastFinishBySets(input, kExact, 0);
    if (!splits) continue;
    ++several;
    for (size_t i = 0; i < input.chunks.size(); ++i) {
      const ChunkView& chunk = input.chunks[i];
      const bool load = splits->sides[i] == Side::kLoad, absent = chunk.state == State::kAbsent;
      EXPECT_EQ(splits->tiers[i] >= 0, load && absent) << i;
      EXPECT_TRUE(splits->tiers[i] < 0 || (chunk.tiers >> splits->tiers[i] & 1) != 0) << i;
    }
    EXPECT_NEAR(FinishOf(input, FromOf(input, *splits)), splits->finish_s, 1e-9);
  }
  EXPECT_GT(several, 300);
}

TEST(TierSplitsTest, PlansAreNearTheBestOfAllChoices) {
  std::mt19937 rng(2);
  std::vector<double> ratios;
  for (int round = 0; round < 400; ++round) {
    SCOPED_TRACE(round);
    const PlanInput input = RandomInput(rng, 2, 9);
    const double plan_s = MakePlan(input, kExact).finish_s, least_s = LeastOfChoices(input);
    EXPECT_GE(plan_s, least_s - 1e-12);
    EXPECT_LE(plan_s, least_s * 1.7 + 1e-12);
    ratios.push_back(plan_s / least_s);
  }
  double mean = 0;
  for (double ratio : ratios) mean += ratio / static_cast<double>(ratios.size());
  std::printf("plan / least: mean %.4f, most %.3f\n", mean,
              *std::max_element(ratios.begin(), ratios.end()));
  EXPECT_LE(mean, 1.02);
}

TEST(TierSplitsTest, LargePromptsArePlanned) {
  // Not a limit, a number to look at: 128K tokens, each set of three tiers.
  PlanInput input = Input({2e-3, 10e-3, 30e-3});
  for (int i = 0; i < 1024; ++i) input.chunks.push_back({.tiers = static_cast<uint32_t>(i) % 8});
  const auto begin = std::chrono::steady_clock::now();
  double finish_s = 0;
  for (int i = 0; i < 20; ++i) finish_s += MakePlan(input).finish_s;
  const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - begin;
  std::printf("%.2f us a plan of 1024 chunks\n", took.count() / 20);
  EXPECT_GT(finish_s, 0);
}

}  // namespace
}  // namespace kvcake
