#include "cake/planner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>

namespace kvcake {
namespace {

using State = ChunkView::State;

// A chunk takes 10 ms to compute and `interval_s` to load.
PlanInput Input(int chunks, double interval_s) {
  PlanInput input;
  input.chunks.assign(chunks, {.tiers = 1});
  input.tiers = {{.known = true, .interval_s = interval_s}};
  input.compute = {.b = 10e-3 / 128, .samples = 10};
  return input;
}

int Loads(const Plan& plan) {
  return static_cast<int>(std::count(plan.sides.begin(), plan.sides.end(), Side::kLoad));
}

TEST(PlannerTest, SplitsByTheRates) {
  const Plan plan = MakePlan(Input(40, 10e-3));
  EXPECT_EQ(Loads(plan), 20);
  EXPECT_EQ(plan.slice_chunks, 4);
  EXPECT_NEAR(plan.finish_s, 0.2, 1e-9);
  EXPECT_EQ(Loads(MakePlan(Input(40, 30e-3))), 10);
}

TEST(PlannerTest, DoesNotStartASliceThatLoadsWouldCover) {
  const Plan plan = MakePlan(Input(4, 2e-3));
  EXPECT_EQ(plan.slice_chunks, 0);
  EXPECT_EQ(Loads(plan), 4);
  EXPECT_GT(plan.wait_s, 0);
}

// What the lanes cost each other on the same cores, for each chunk that comes beside a slice.
TEST(PlannerTest, LanesThatHinderEachOtherDoNotRunTogether) {
  PlanInput input = Input(60, 1e-3);
  EXPECT_EQ(MakePlan(input).slice_chunks, 4);
  input.tiers[0].beside_s = 0.2e-3;
  const Plan plan = MakePlan(input);
  EXPECT_EQ(plan.slice_chunks, 0) << "gains a tenth, and costs twice that";
  EXPECT_EQ(Loads(plan), 60);
  EXPECT_NEAR(plan.finish_s, 60e-3, 1e-9);
}

TEST(PlannerTest, WhatIsLittleBesideALinksTimeChangesNoSplit) {
  PlanInput input = Input(40, 10e-3);
  input.tiers[0].beside_s = 0.2e-3;
  const Plan plan = MakePlan(input);
  EXPECT_NEAR(Loads(plan), 20, 1);
  EXPECT_EQ(plan.slice_chunks, 4);
  EXPECT_NEAR(plan.finish_s, 0.2 + 20 * 0.2e-3, 1e-3);
}

TEST(PlannerTest, ComputeIsLeftAloneWhereItGainsLessThanItsNoise) {
  PlanInput input = Input(40, 2e-3);
  ASSERT_GT(MakePlan(input).slice_chunks, 0);
  input.compute.noise = 0.5;  // of a slice of 40 ms; all chunks can be loaded in 80
  EXPECT_EQ(MakePlan(input).slice_chunks, 0);
}

// A prompt that ends with its last chunk needs that chunk's last row, which no load brings.
TEST(PlannerTest, TheLastTokenIsComputedOnceMoreWhereItsChunkIsLoaded) {
  PlanInput input = Input(1, 9.5e-3);
  EXPECT_EQ(MakePlan(input).slice_chunks, 0);
  input.last_token_s = 3e-3;
  EXPECT_EQ(MakePlan(input).slice_chunks, 1);
  EXPECT_NEAR(MakePlan(input).finish_s, 10e-3, 1e-9);
  input.tiers[0].interval_s = 6e-3;
  EXPECT_EQ(MakePlan(input).slice_chunks, 0);
  EXPECT_NEAR(MakePlan(input).finish_s, 6e-3, 1e-9) << "when everything is resident";
  input = Input(2, 9.5e-3);
  input.chunks[1].state = State::kResident;
  input.last_token_s = 3e-3;
  EXPECT_EQ(MakePlan(input).slice_chunks, 0) << "it has to be computed anyway";
}

TEST(PlannerTest, DoesNotLoadWhatComputeReachesFirst) {
  const Plan plan = MakePlan(Input(4, 50e-3));
  EXPECT_EQ(plan.slice_chunks, 4);
  EXPECT_EQ(Loads(plan), 0);
}

TEST(PlannerTest, SlicesShrinkToWhatIsLeft) {
  PlanInput input = Input(10, 10e-3);
  for (int i = 5; i < 10; ++i) input.chunks[i].state = State::kResident;
  const Plan plan = MakePlan(input);  // five left: two or three of them to compute
  EXPECT_GE(plan.slice_chunks, 2);
  EXPECT_LE(plan.slice_chunks, 3);
}

TEST(PlannerTest, ALoadInFlightIsTakenOverOnlyForAGain) {
  PlanInput input = Input(3, 100e-3);
  for (int i = 1; i < 3; ++i) input.chunks[i].state = State::kResident;
  input.chunks[0] = {.state = State::kInFlight, .tiers = 1, .eta_s = 10.5e-3};
  EXPECT_EQ(MakePlan(input).slice_chunks, 0) << "gains 5% of a chunk";
  input.chunks[0].eta_s = 13e-3;
  EXPECT_EQ(MakePlan(input).slice_chunks, 1) << "gains 30%";
}

TEST(PlannerTest, AHoleAtTheEndIsComputedAfterTheStoredPrefix) {
  PlanInput input = Input(12, 1e-3);
  for (int i = 8; i < 12; ++i) input.chunks[i].tiers = 0;
  const Plan plan = MakePlan(input);
  EXPECT_EQ(plan.slice_chunks, 0);
  EXPECT_EQ(Loads(plan), 8);
  EXPECT_NEAR(plan.finish_s, 8e-3 + 40e-3, 1e-9);
}

TEST(PlannerTest, ASliceGoesOnThroughAHole) {
  PlanInput input = Input(8, 1);
  input.chunks[1].tiers = 0;
  EXPECT_EQ(MakePlan(input).slice_chunks, 4);
}

TEST(PlannerTest, FixedSplitsAreLaw) {
  PlanInput input = Input(8, 1e-3);
  input.fixed_split = 3;
  EXPECT_EQ(MakePlan(input).slice_chunks, 3);
  input.fixed_split = 0;
  EXPECT_EQ(MakePlan(input).slice_chunks, 0);
  input.chunks[0].tiers = 0;
  EXPECT_EQ(MakePlan(input).slice_chunks, 1) << "what cannot be loaded is computed";
}

TEST(PlannerTest, WithoutNumbersBothLanesGoOn) {
  PlanInput input = Input(8, 1e-3);
  input.compute = {};
  const Plan plan = MakePlan(input);
  EXPECT_EQ(plan.slice_chunks, 1) << "to see what one takes";
  EXPECT_EQ(plan.sides[7], Side::kEither);
}

TEST(PlannerTest, AnUnknownTierGetsAMomentThenSingleChunksAreComputed) {
  PlanInput input = Input(8, 0);
  input.tiers[0] = {.known = false, .waited_s = 0};
  Plan plan = MakePlan(input);
  EXPECT_EQ(plan.slice_chunks, 0);
  EXPECT_NEAR(plan.wait_s, 2e-3, 1e-9);
  input.tiers[0].waited_s = 3e-3;
  plan = MakePlan(input);
  EXPECT_EQ(plan.slice_chunks, 1);
  input.tiers[0].waited_s = 45e-3;
  EXPECT_EQ(MakePlan(input).slice_chunks, 2);
}

TEST(PlannerTest, NobodyTakesOverFromASlice) {
  PlanInput input = Input(4, 1);
  input.chunks[0] = {.state = State::kComputing, .tiers = 1};
  EXPECT_EQ(MakePlan(input).slice_chunks, 0);
}

TEST(PlannerTest, NoiseHalvesTheLastSlice) {
  PlanInput input = Input(8, 10e-3);
  EXPECT_EQ(MakePlan(input).slice_chunks, 4);
  input.compute.noise = 0.1;
  EXPECT_EQ(MakePlan(input).slice_chunks, 2);
}

TEST(PlannerTest, TwoTiersShareTheLoads) {
  PlanInput input = Input(60, 10e-3);
  for (ChunkView& chunk : input.chunks) chunk.tiers = 3;
  input.tiers.push_back({.known = true, .interval_s = 20e-3});
  const Plan plan = MakePlan(input);
  const auto from = [&](int tier) {
    int n = 0;
    for (size_t i = 0; i < plan.sides.size(); ++i) {
      n += plan.sides[i] == Side::kLoad && plan.tiers[i] == tier;
    }
    return n;
  };
  EXPECT_NEAR(from(0), 24, 1);
  EXPECT_NEAR(from(1), 12, 1);
}

TEST(PlannerTest, WhatOneTierAloneHasItLoadsInsteadOfWhatOthersCan) {
  PlanInput input = Input(30, 10e-3);
  input.tiers.push_back(input.tiers[0]);
  for (int i = 0; i < 30; ++i) input.chunks[i].tiers = i < 10 ? 2 : 3;
  input.fixed_split = 0;
  Plan plan = MakePlan(input);
  EXPECT_EQ(std::ranges::count(plan.tiers, 0), 15);
  EXPECT_EQ(std::ranges::count(plan.tiers, 1), 15);
  input.tiers[1].known = false;
  plan = MakePlan(input);
  EXPECT_EQ(std::ranges::count(plan.tiers, 0), 20) << "those that a tier of known speed has";
  EXPECT_EQ(std::ranges::count(plan.tiers, -1), 10) << "any that has it may load it";
}

TEST(PlannerTest, LargePromptsArePlanned) {
  // Not a limit, a number to look at: 16K tokens.
  const PlanInput input = Input(128, 10e-3);
  const auto begin = std::chrono::steady_clock::now();
  int chunks = 0;
  for (int i = 0; i < 1000; ++i) chunks += MakePlan(input).slice_chunks;
  const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - begin;
  std::printf("%.2f us a plan of 128 chunks\n", took.count() / 1000);
  EXPECT_EQ(chunks, 4000);
}

}  // namespace
}  // namespace kvcake
