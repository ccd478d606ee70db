#include "cake/split_search.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "cake/split_search_testing.h"

namespace kvcake {
namespace {

using State = ChunkView::State;
using testing_util::kExact;

// Chunks take longer the more there is before them; a slice costs no more than its chunks.
PlanInput RandomInput(std::mt19937& rng, int chunks, double held) {
  std::uniform_real_distribution<double> uniform(0, 1);
  PlanInput input;
  input.slice_chunks_max = 1;
  input.compute = {.b = 10e-3 / 128, .a = 10e-6 / 128 * uniform(rng), .samples = 10};
  input.compute_busy_s = rng() % 2 == 0 ? 0 : 0.02 * uniform(rng);
  input.tiers = {{.known = true,
                  .interval_s = 40e-3 * uniform(rng),
                  .drain_s = rng() % 2 == 0 ? 0 : 0.02 * uniform(rng)}};
  for (int i = 0; i < chunks; ++i) {
    ChunkView chunk{.tiers = uniform(rng) < held};
    if (chunk.tiers != 0 && rng() % 8 == 0) chunk.state = State::kResident;
    input.chunks.push_back(chunk);
  }
  input.chunks[0].state = State::kAbsent;
  return input;
}

double ChunkSeconds(const PlanInput& input, int chunk) {
  return input.compute.SecondsFor(chunk * input.chunk_tokens, input.chunk_tokens);
}

// When everything is resident if the loads, earliest chunk first, make the chosen ones.
double Finish(const PlanInput& input, const std::vector<bool>& loaded) {
  std::vector<int8_t> from;
  for (const bool load : loaded) from.push_back(load ? 0 : -1);
  return testing_util::FinishOf(input, from);
}

TEST(SplitSearchTest, NoChoiceOfChunksIsFasterWithOneTier) {
  std::mt19937 rng(1);
  for (int round = 0; round < 300; ++round) {
    SCOPED_TRACE(round);
    const PlanInput input = RandomInput(rng, 11, 0.3 + 0.1 * (round % 7));
    const Splits splits = LeastFinish(input, kExact, 0);
    const double least_s = testing_util::LeastOfChoices(input);
    EXPECT_GE(splits.finish_s, least_s - 1e-12);
    EXPECT_LE(splits.finish_s, least_s * (1 + 1e-9));
  }
}

TEST(SplitSearchTest, TheSplitsTakeWhatIsPromisedAtMost) {
  std::mt19937 rng(2);
  for (int round = 0; round < 200; ++round) {
    SCOPED_TRACE(round);
    const PlanInput input = RandomInput(rng, 1 + static_cast<int>(rng() % 200), 0.7);
    const Splits splits = LeastFinish(input, kExact, 0);
    std::vector<bool> loaded;
    for (size_t i = 0; i < input.chunks.size(); ++i) {
      loaded.push_back(splits.sides[i] == Side::kLoad);
      const bool absent = input.chunks[i].state == State::kAbsent;
      EXPECT_EQ(splits.tiers[i] >= 0, loaded[i] && absent) << i;
      EXPECT_FALSE(loaded[i] && input.chunks[i].IsHole()) << i;
    }
    EXPECT_NEAR(Finish(input, loaded), splits.finish_s, 1e-9);
  }
}

TEST(SplitSearchTest, ManyHolesAreNoReasonToLose) {
  std::mt19937 rng(3);
  for (int round = 0; round < 50; ++round) {
    SCOPED_TRACE(round);
    const PlanInput input = RandomInput(rng, 300, 0.5);
    const double finish_s = LeastFinish(input, kExact, 0).finish_s;
    std::vector<bool> all, none(input.chunks.size());
    for (const ChunkView& chunk : input.chunks) all.push_back(chunk.tiers != 0);
    EXPECT_LE(finish_s, Finish(input, none) + 1e-9);
    EXPECT_LE(finish_s, Finish(input, all) + 1e-9);
    // What compute has to make in any case takes as long.
    double holes_s = input.compute_busy_s;
    for (size_t i = 0; i < input.chunks.size(); ++i) {
      if (input.chunks[i].IsHole()) holes_s += ChunkSeconds(input, static_cast<int>(i));
    }
    EXPECT_GE(finish_s, holes_s - 1e-9);
  }
}

// A slice of several chunks goes on behind a hole, and costs its fixed part once.
TEST(SplitSearchTest, ComputingAllIsNoDearerForHolesInIt) {
  std::mt19937 rng(4);
  for (int round = 0; round < 300; ++round) {
    SCOPED_TRACE(round);
    const int chunks = 2 + static_cast<int>(rng() % 60);
    PlanInput input = RandomInput(rng, chunks, 0.1 + 0.1 * (round % 9));
    input.slice_chunks_max = 1 + static_cast<int>(rng() % 16);
    input.compute.c0 = 100e-3;
    double computed_s = input.compute_busy_s;
    for (int i = 0; i < chunks;) {
      if (input.chunks[i].state == State::kResident) {
        ++i;
        continue;
      }
      const int first = i;
      const int end = std::min(chunks, first + input.slice_chunks_max);
      while (i < end && input.chunks[i].state == State::kAbsent) ++i;
      computed_s +=
          input.compute.SecondsFor(first * input.chunk_tokens, (i - first) * input.chunk_tokens);
    }
    EXPECT_LE(LeastFinish(input, kExact, 0).finish_s, computed_s * (1 + 1e-9));
  }
}

// Two of them behind each other, each before a hole.
TEST(SplitSearchTest, EachLoadThatIsTakenOverMustBeWorthIt) {
  PlanInput input;
  input.slice_chunks_max = 1;
  input.compute = {.b = 10e-3 / input.chunk_tokens, .samples = 10};
  input.tiers = {{.known = true, .interval_s = 100}};
  const ChunkView held{.tiers = 1}, hole{};
  const ChunkView in_flight{.state = State::kInFlight, .tiers = 1, .eta_s = 100};
  input.chunks = {held, in_flight, hole, held, in_flight, hole};
  PlannerOptions options = kExact;
  options.take_over_margin_chunks = 0.5;
  EXPECT_NEAR(LeastFinish(input, options, 0).finish_s, (6 + 2 * 0.5) * 10e-3, 1e-9);
}

// Nobody computes behind another prompt's slice, so what is missing there is loaded.
TEST(SplitSearchTest, WhatIsBehindASliceOfAnotherIsWaitedForBeforeTheNextHole) {
  PlanInput input;
  input.slice_chunks_max = 4;
  input.compute = {.c0 = 10e-3, .b = 10e-3 / input.chunk_tokens, .samples = 10};
  input.tiers = {{.known = true, .interval_s = 100}};
  const ChunkView held{.tiers = 1}, hole{};
  input.chunks = {held, {.state = State::kComputing, .tiers = 1}, held, hole, held, hole};
  const double finish_s = LeastFinish(input, kExact, 0).finish_s;
  EXPECT_GE(finish_s, 100);
  EXPECT_LT(finish_s, 101) << "what is behind the hole is computed";
}

// Where every chunk before a hole would be waited for, it is better to compute some and to have the
// link load what is behind the hole.
TEST(SplitSearchTest, LoadsBehindAHoleAreWorthMoreThanThoseBeforeIt) {
  PlanInput input;
  input.compute = {.b = 10e-3 / 128, .samples = 10};
  input.slice_chunks_max = 1;
  input.tiers = {{.known = true, .interval_s = 20e-3}};
  input.chunks.assign(6, {.tiers = 1});
  input.chunks[1].tiers = 0;  // #.####
  const Splits splits = LeastFinish(input, kExact, 0);
  EXPECT_EQ(splits.sides[0], Side::kCompute);
  EXPECT_NEAR(splits.finish_s, 0.04, 1e-9);  // two loads while four are computed
}

TEST(SplitSearchTest, WhatIsInFlightIsLeftToTheLoadsUnlessComputeGains) {
  PlanInput input;
  input.compute = {.b = 10e-3 / 128, .samples = 10};
  input.tiers = {{.known = true, .interval_s = 5e-3}};
  input.chunks.assign(2, {.state = State::kInFlight, .tiers = 1});
  input.chunks[0].eta_s = 5e-3, input.chunks[1].eta_s = 8e-3;
  EXPECT_EQ(LeastFinish(input, {}, 0).sides[0], Side::kLoad);
  EXPECT_NEAR(LeastFinish(input, {}, 0).finish_s, 8e-3, 1e-9);
  input.chunks[0].eta_s = input.chunks[1].eta_s = 1;
  const Splits taken = LeastFinish(input, {}, 0);
  EXPECT_EQ(taken.sides[0], Side::kCompute);
  EXPECT_EQ(taken.sides[1], Side::kCompute);
  input.chunks[0].state = State::kComputing;  // nobody takes over from a slice
  EXPECT_EQ(LeastFinish(input, {}, 0).sides[1], Side::kLoad);
}

}  // namespace
}  // namespace kvcake
