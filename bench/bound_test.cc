#include "bench/bound.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace kvcake::bench {
namespace {

// Eight chunks of 128 tokens: computed in two slices of 1 s and 3 s and a tail of 0.5 s, or loaded
// one a second after a start of 0.25 s.
class BoundTest : public testing::Test {
 protected:
  BoundTest() {
    compute_.chunk_tokens = load_.chunk_tokens = 128;
    compute_.prompt_tokens = load_.prompt_tokens = 1044;
    Add(compute_, "compute", 0, 512, 0, 1);
    Add(compute_, "compute", 512, 512, 1, 4);
    Add(compute_, "compute", 1024, 20, 4, 4.5);
    for (int i = 0; i < 8; ++i) Add(load_, "disk", 128 * (7 - i), 128, 0, 1.25 + i);
    Add(load_, "compute", 1024, 20, 8.25, 8.75);
  }
  static void Add(RestoreReport& run, const char* lane, int first, int tokens, double from,
                  double to) {
    run.AddTimeline(
        {.lane = lane, .first_token = first, .tokens = tokens, .start_s = from, .end_s = to});
  }
  Bound Least(const std::vector<bool>& present, const ComputeFit& fit = {}) const {
    return LeastTime(ComputeCurve(compute_, fit), LoadCurve(load_, 8).value(), present, 0.5);
  }
  RestoreReport compute_, load_;
  const std::vector<bool> all_ = std::vector<bool>(8, true);
};

TEST_F(BoundTest, BestSplitPlusTheLastPart) {
  // Splits after 5 and 6 chunks: max(1.75, 3.25) and max(2.5, 2.25).
  EXPECT_DOUBLE_EQ(Least(all_).whole_s, 2.5 + 0.5);
  EXPECT_EQ(Least(all_).split, 6);
  // From 5 to 6 compute goes 1.75 -> 2.5 and loading 3.25 -> 2.25: they cross at 6/7.
  EXPECT_DOUBLE_EQ(Least(all_).fractional_s, 1.75 + 0.75 * 6 / 7 + 0.5);
}

TEST_F(BoundTest, HolesAreComputedWhereverTheyAre) {
  std::vector<bool> present = all_;
  present[7] = false;  // the last chunk costs 0.75 s
  // It waits for all before it: five computed in 1.75, two loaded in 2.25.
  EXPECT_DOUBLE_EQ(Least(present).whole_s, 2.25 + 0.75 + 0.5);
  present = all_;
  present[0] = false;  // nothing to wait for: as if it were computed anyway
  EXPECT_DOUBLE_EQ(Least(present).whole_s, Least(all_).whole_s);
  EXPECT_DOUBLE_EQ(Least(std::vector<bool>(8, false)).whole_s, 4.5);
  EXPECT_DOUBLE_EQ(Least(std::vector<bool>(8, false)).fractional_s, 4.5);
}

TEST_F(BoundTest, ComputingAllWhenLoadsAreHopeless) {
  for (TimelineEntry& entry : load_.timeline) {
    if (entry.lane == "disk") entry.end_s *= 100;
  }
  EXPECT_DOUBLE_EQ(Least(all_).whole_s, 4.5);
}

TEST_F(BoundTest, TheFitSpreadsASliceOverItsChunks) {
  // Cost grows with position only: the first two chunks of the second slice take 20 of its 48
  // parts.
  ComputeFit fit;
  fit.a = 1;
  fit.samples = 1;
  EXPECT_DOUBLE_EQ(ComputeCurve(compute_, fit)[6], 1 + 3.0 * 20 / 48);
  EXPECT_DOUBLE_EQ(Least(all_, fit).whole_s, 2.25 + 0.5);
}

TEST_F(BoundTest, LoadsGoOnAtTheirPace) {
  RestoreReport part = load_;
  part.prompt_tokens = 3 * 128;
  part.timeline.resize(3);
  EXPECT_EQ(LoadCurve(part, 8).value(), LoadCurve(load_, 8).value());
}

TEST_F(BoundTest, RefusesALoadOnlyRunThatComputed) {
  load_.timeline.erase(load_.timeline.begin());
  EXPECT_FALSE(LoadCurve(load_, 8));
}

// When all is there if these chunks are loaded, the foremost first, and the others are computed,
// each after all before it.
double TimeOf(uint32_t loaded, const LaneCurve& compute, const LaneCurve& load) {
  double now = 0;
  int loads = 0;
  for (size_t i = 0; i + 1 < compute.size(); ++i) {
    if ((loaded >> i & 1) != 0) {
      ++loads;
    } else {
      now = std::max(now, load[loads]) + compute[i + 1] - compute[i];
    }
  }
  return std::max(now, load[loads]);
}

// Against every subset of the present chunks, loaded or not.
TEST(LeastTimeTest, NoChoiceOfChunksIsFaster) {
  std::mt19937 rng(1);
  std::uniform_real_distribution<double> cost(0.1, 1);
  int reached = 0;
  for (int round = 0; round < 200; ++round) {
    const int n = 1 + static_cast<int>(rng() % 9);
    // Later chunks cost more, as they do.
    LaneCurve compute = {0}, load = {0};
    double each = cost(rng);
    for (int i = 0; i < n; ++i) {
      compute.push_back(compute.back() + each);
      each += cost(rng) * 0.2;
      load.push_back((i + 1) * 0.7);
    }
    uint32_t present = 0;
    std::vector<bool> flags;
    for (int i = 0; i < n; ++i) {
      flags.push_back(rng() % 3 != 0);
      present |= static_cast<uint32_t>(flags[i]) << i;
    }
    double best = 1e9;
    for (uint32_t loaded = 0; loaded < 1u << n; ++loaded) {
      if ((loaded & ~present) == 0) best = std::min(best, TimeOf(loaded, compute, load));
    }
    const Bound bound = LeastTime(compute, load, flags, 0);
    EXPECT_LE(bound.whole_s, best + 1e-9);
    EXPECT_LE(bound.fractional_s, bound.whole_s + 1e-12);
    reached += bound.whole_s > best - 1e-9;
  }
  EXPECT_GT(reached, 100);
}

}  // namespace
}  // namespace kvcake::bench
