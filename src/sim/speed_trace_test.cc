#include "sim/speed_trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <random>

#include "base/temp_dir_testing.h"

namespace kvcake {
namespace {

using testing::HasSubstr;

TEST(SpeedTraceTest, WorkEndsWhenTheSpeedsHaveDoneIt) {
  const SpeedTrace plain;
  EXPECT_DOUBLE_EQ(plain.EndOf(3, 2), 5);
  EXPECT_DOUBLE_EQ(plain.SpeedAt(7), 1);
  const SpeedTrace trace({{0, 1}, {10, 0.5}, {20, 0}, {30, 2}});
  EXPECT_DOUBLE_EQ(trace.EndOf(0, 4), 4);
  EXPECT_DOUBLE_EQ(trace.EndOf(0, 10), 10);
  EXPECT_DOUBLE_EQ(trace.EndOf(8, 4), 14);
  EXPECT_DOUBLE_EQ(trace.EndOf(18, 2), 30.5) << "it stands still from 20 to 30";
  EXPECT_DOUBLE_EQ(trace.EndOf(22, 0), 22);
  EXPECT_DOUBLE_EQ(trace.EndOf(100, 4), 102);
  EXPECT_DOUBLE_EQ(trace.SpeedAt(10), 0.5);
  EXPECT_DOUBLE_EQ(trace.SpeedAt(1e9), 2);
}

TEST(SpeedTraceTest, TwoPartsTakeAsLongAsTheWhole) {
  std::mt19937 rng(1);
  std::uniform_real_distribution<double> uniform(0, 1);
  for (int round = 0; round < 500; ++round) {
    std::vector<SpeedPoint> points = {{0, uniform(rng)}};
    while (points.size() < 6) {
      points.push_back({points.back().at_s + 0.01 + uniform(rng), 0.1 + uniform(rng)});
    }
    const SpeedTrace trace(points);
    const double start = 3 * uniform(rng), a = 2 * uniform(rng), b = 2 * uniform(rng);
    EXPECT_NEAR(trace.EndOf(trace.EndOf(start, a), b), trace.EndOf(start, a + b), 1e-9);
  }
}

TEST(SpeedTraceTest, FilesAreReadAndBadLinesNamed) {
  const auto trace = ParseSpeedTrace("# share\n0 1\n\n 1.5 0\n2 0.25\n", 1);
  ASSERT_TRUE(trace) << trace.error().message;
  EXPECT_DOUBLE_EQ(trace->EndOf(1, 1), 4);
  const auto refuses = [](const char* text, const char* says) {
    const auto bad = ParseSpeedTrace(text, 1);
    ASSERT_FALSE(bad) << text;
    EXPECT_THAT(bad.error().message, HasSubstr(says));
  };
  refuses("", "no line");
  refuses("0 1 2\n", "line 1");
  refuses("0 1\nx 1\n", "line 2");
  refuses("1 1\n", "line 1");
  refuses("0 1\n1 1\n1 0.5\n", "line 3");
  refuses("0 1\n2e9 1\n", "line 2");
  refuses("0 1.5\n", "from 0 to 1");
  refuses("0 -1\n", "from 0 to 1");
  refuses("0 nan\n", "line 1");
  refuses("0 1\n2 0\n", "for ever");
  EXPECT_THAT(ReadSpeedTrace("--compute-trace", "/nonexistent/t", 1).error().message,
              HasSubstr("/nonexistent/t"));
  const TempDir dir;
  std::ofstream(dir.path() + "/t") << "0 2\n";
  EXPECT_THAT(ReadSpeedTrace("--compute-trace", dir.path() + "/t", 1).error().message,
              HasSubstr("--compute-trace " + dir.path() + "/t: line 1"));
}

}  // namespace
}  // namespace kvcake
