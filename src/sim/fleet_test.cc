// Single flight among processes: what several that start on one document compute twice, and how
// late waiting for each other makes them.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "sim/fleet_testing.h"
#include "sim/simulator_testing.h"

namespace kvcake {
namespace {

using namespace testing_util;

double AloneSeconds(int chunks, const ProcessOptions& process) { return chunks * process.chunk_s; }

// How late a prompt may be, by what waiting may cost it (ClaimOptions): once, and once more where
// another was ahead of it all the same.
double LatestSeconds(int chunks, const ProcessOptions& process, int chances = 1) {
  const ClaimOptions claims;
  const double alone_s = AloneSeconds(chunks, process);
  return alone_s + claims.lost_share * alone_s + chances * claims.lost_slices * 4 * process.chunk_s;
}

TEST(FleetTest, ProcessesThatStartTogetherComputeEachChunkOnce) {
  for (const int chunks : {4, 8, 63, 64, 200}) {
    const std::vector<ProcessOptions> four(4);
    const FleetOutcome outcome = RunFleet(chunks, four);
    EXPECT_EQ(outcome.computed_twice, 0) << chunks;
    EXPECT_EQ(outcome.claims_left, 0u);
    for (const auto& seconds : outcome.seconds) {
      // The last slice is written and read once.
      EXPECT_LE(*seconds, 1.02 * AloneSeconds(chunks, four[0]) + 0.03) << chunks;
    }
  }
}

TEST(FleetTest, WithoutClaimsAllComputeEverything) {
  ProcessOptions process;
  process.claims = false;
  const FleetOutcome outcome = RunFleet(64, std::vector(4, process));
  EXPECT_EQ(outcome.computed_twice, 3 * 64);
  for (const auto& seconds : outcome.seconds) EXPECT_NEAR(*seconds, 64 * 0.05, 1e-3);
}

TEST(FleetTest, WhoComesLaterGetsWhatIsThereAndWaitsForTheRest) {
  std::vector<ProcessOptions> fleet(4);
  for (int i = 0; i < 4; ++i) fleet[i].starts_s = 0.7 * i;
  const FleetOutcome outcome = RunFleet(64, fleet);
  EXPECT_LE(outcome.computed_twice, 4);
  for (int i = 0; i < 4; ++i) EXPECT_LE(*outcome.seconds[i], 1.03 * 64 * 0.05 - 0.7 * i + 0.02);
}

TEST(FleetTest, ShortPromptsDoNotTakePart) {
  ProcessOptions process;
  process.chunk_s = 0.02;
  const FleetOutcome outcome = RunFleet(4, std::vector(2, process));
  EXPECT_EQ(outcome.computed_twice, 4);
  for (const auto& seconds : outcome.seconds) EXPECT_NEAR(*seconds, 4 * 0.02, 1e-6);
}

TEST(FleetTest, NobodyWaitsForAStoreThatIsSlowerThanComputing) {
  ProcessOptions process;
  process.read_s = 3 * process.chunk_s;
  std::vector<ProcessOptions> fleet(2, process);
  const FleetOutcome outcome = RunFleet(64, fleet);
  for (const auto& seconds : outcome.seconds) EXPECT_LE(*seconds, LatestSeconds(64, process));
}

TEST(FleetTest, OneThatIsKilledIsFollowedAtOnce) {
  std::vector<ProcessOptions> fleet(4);
  fleet[0].killed_s = 0.05 * 30;  // in the middle of a slice
  const FleetOutcome outcome = RunFleet(64, fleet);
  EXPECT_FALSE(outcome.seconds[0]);
  // Those who waited for it, and then for the next, may find that too much and compute two slices.
  EXPECT_LE(outcome.computed_twice, 2 * 8);
  for (int i = 1; i < 4; ++i) EXPECT_LE(*outcome.seconds[i], LatestSeconds(64, fleet[i]) + 0.03);
}

TEST(FleetTest, OneThatHangsIsGivenUp) {
  std::vector<ProcessOptions> fleet(3);
  fleet[0].hangs_s = 0.05 * 30;
  const FleetOutcome outcome = RunFleet(64, fleet);
  for (int i = 1; i < 3; ++i) EXPECT_LE(*outcome.seconds[i], LatestSeconds(64, fleet[i]) + 0.01);
}

// A slower leader would make who follows it later and later.
TEST(FleetTest, OneThatIsSlowIsOvertaken) {
  std::vector<ProcessOptions> fleet(2);
  fleet[0].chunk_s = 0.15;
  fleet[1].starts_s = 0.01;
  const FleetOutcome outcome = RunFleet(64, fleet);
  EXPECT_LE(*outcome.seconds[1], LatestSeconds(64, fleet[1]) + 0.01);
  EXPECT_LE(*outcome.seconds[0], 64 * 0.06) << "who was overtaken follows";
  EXPECT_LE(outcome.computed_twice, 16);
}

// Whatever the others do, nobody is later than waiting may make it.
TEST(FleetTest, NobodyIsLateWhateverHappensToOthers) {
  std::mt19937 rng(1);
  double worst = 0;
  int twice = 0, all = 0;
  for (int round = 0; round < 300; ++round) {
    const int chunks = Pick(rng, 5, 120);
    std::vector<ProcessOptions> fleet(Pick(rng, 2, 5));
    const double chunk_s = LogUniform(rng, 0.02, 0.5);
    const double span_s = chunks * chunk_s;
    for (ProcessOptions& process : fleet) {
      process.chunk_s = chunk_s * LogUniform(rng, 0.7, 1.5);
      process.starts_s = Pick(rng, 0, 1) * LogUniform(rng, 1e-3, span_s);
      process.read_s = process.chunk_s * LogUniform(rng, 1e-3, 0.3);
      process.write_s = process.chunk_s * LogUniform(rng, 1e-3, 0.3);
      process.answer_s = std::min(1e-3, process.chunk_s * LogUniform(rng, 1e-3, 1));
      const int fate = Pick(rng, 0, 5);
      if (fate == 0) process.killed_s = LogUniform(rng, 1e-2, 1.5) * span_s;
      if (fate == 1) process.hangs_s = LogUniform(rng, 1e-2, 1.5) * span_s;
      process.claims = Pick(rng, 0, 9) > 0;
    }
    const FleetOutcome outcome = RunFleet(chunks, fleet);
    for (size_t i = 0; i < fleet.size(); ++i) {
      if (!outcome.seconds[i]) continue;
      const double over_s = *outcome.seconds[i] - LatestSeconds(chunks, fleet[i], /*chances=*/2);
      worst = std::max(worst, over_s / fleet[i].chunk_s);
      // Asking takes a moment for each slice, and a look comes up to 50 ms late.
      EXPECT_LE(over_s, 0.02 * AloneSeconds(chunks, fleet[i]) + fleet[i].chunk_s + 0.05)
          << round << " " << i;
    }
    twice += outcome.computed_twice;
    all += chunks * static_cast<int>(fleet.size() - 1);
  }
  RecordProperty("chunks_twice", twice);
  printf("latest: %.2f chunks beyond what is allowed; %d of %d chunks computed twice\n", worst,
         twice, all);
  EXPECT_LT(twice, all / 2);
}

}  // namespace
}  // namespace kvcake
