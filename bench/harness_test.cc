#include "bench/harness.h"

#include <gtest/gtest.h>

namespace kvcake::bench {
namespace {

TEST(HarnessTest, MedianOfOddAndEven) {
  EXPECT_EQ(Median({3, 1, 2}), 2);
  EXPECT_EQ(Median({4, 1, 3, 2}), 2.5);
  EXPECT_EQ(Median({7}), 7);
}

// Eight chunks of 128 tokens: computed in two slices of 1 s and 3 s and a tail of 0.5 s, or loaded
// one a second after a start of 0.25 s.
class MeasuredBoundTest : public testing::Test {
 protected:
  MeasuredBoundTest() {
    compute_.report.chunk_tokens = load_.report.chunk_tokens = 128;
    Add(compute_, "compute", 0, 512, 0, 1);
    Add(compute_, "compute", 512, 512, 1, 4);
    Add(compute_, "compute", 1024, 20, 4, 4.5);
    compute_.ttft_s = 4.5;
    for (int i = 0; i < 8; ++i) Add(load_, "disk", 128 * (7 - i), 128, 0, 1.25 + i);
    Add(load_, "compute", 1024, 20, 8.25, 8.75);
    load_.ttft_s = 8.75;
  }
  static void Add(Completion& run, const char* lane, int first, int tokens, double from,
                  double to) {
    run.report.AddTimeline(
        {.lane = lane, .first_token = first, .tokens = tokens, .start_s = from, .end_s = to});
  }
  Completion compute_, load_;
};

TEST_F(MeasuredBoundTest, BestSplitPlusTheLastPart) {
  // Splits after 5 and 6 chunks: max(1.75, 3.25) and max(2.5, 2.25); 7: max(3.25, 1.25).
  EXPECT_DOUBLE_EQ(MeasuredBound(compute_, load_, {}).value(), 2.5 + 0.5);
}

TEST_F(MeasuredBoundTest, ComputingAllWhenLoadsAreHopeless) {
  for (TimelineEntry& entry : load_.report.timeline) {
    if (entry.lane == "disk") entry.end_s *= 100;
  }
  load_.ttft_s = 900;
  EXPECT_DOUBLE_EQ(MeasuredBound(compute_, load_, {}).value(), 4.5);
}

TEST_F(MeasuredBoundTest, TheFitSpreadsASliceOverItsChunks) {
  // Cost grows with position only: the first chunk of the second slice takes 9 of its 48 parts.
  ComputeFit fit;
  fit.a = 1;
  fit.samples = 1;
  const double first = 3.0 * (2 * 512 * 128 + 128 * 128) / (2 * 512 * 512 + 512 * 512);
  EXPECT_DOUBLE_EQ(first, 3.0 * 9 / 48);
  // After 6 chunks compute is at 1 + 3 * 20 / 48 = 2.25 s, and so are the loads of the other two.
  EXPECT_DOUBLE_EQ(MeasuredBound(compute_, load_, fit).value(), 2.25 + 0.5);
}

TEST_F(MeasuredBoundTest, RefusesALoadOnlyRunThatComputed) {
  load_.report.timeline.erase(load_.report.timeline.begin());
  EXPECT_FALSE(MeasuredBound(compute_, load_, {}));
}

}  // namespace
}  // namespace kvcake::bench
