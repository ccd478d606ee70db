#include "bench/load_ladder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace kvcake::bench {
namespace {

using testing::DoubleNear;
using testing::ElementsAre;

// Climbs where loads up to `limit` are kept, and tells what was tried.
LadderEnd ClimbTo(double limit, std::vector<double>* tried) {
  return Climb({.first = 1, .least = 0.25, .most = 8, .halvings = 2},
               [&](double load) -> Result<bool> {
                 tried->push_back(load);
                 return load <= limit;
               })
      .value();
}

TEST(LoadLadder, HalvesWhatLiesBetweenTheLastThatIsKeptAndTheFirstThatIsNot) {
  std::vector<double> tried;
  const LadderEnd end = ClimbTo(3, &tried);
  EXPECT_THAT(tried, ElementsAre(1, 2, 4, DoubleNear(2.83, 0.01), DoubleNear(3.36, 0.01)));
  EXPECT_NEAR(end.load, 2.83, 0.01);
  EXPECT_FALSE(end.is_top);
}

TEST(LoadLadder, GoesDownWhereTheFirstIsTooMuch) {
  std::vector<double> tried;
  EXPECT_NEAR(ClimbTo(0.6, &tried).load, 0.59, 0.01);
  EXPECT_THAT(tried, ElementsAre(1, 0.5, DoubleNear(0.71, 0.01), DoubleNear(0.59, 0.01)));
  tried.clear();
  const LadderEnd none = ClimbTo(0.1, &tried);
  EXPECT_THAT(tried, ElementsAre(1, 0.5, 0.25));
  EXPECT_EQ(none.load, 0);
  EXPECT_FALSE(none.is_top);
}

TEST(LoadLadder, TellsThatItEndsBeforeTheLimit) {
  std::vector<double> tried;
  const LadderEnd end = ClimbTo(100, &tried);
  EXPECT_THAT(tried, ElementsAre(1, 2, 4, 8));
  EXPECT_EQ(end.load, 8);
  EXPECT_TRUE(end.is_top) << "more may be kept";
}

TEST(LoadLadder, EndsWithAnError) {
  EXPECT_FALSE(Climb({}, [](double) -> Result<bool> { return Fail(ErrorCode::kIo, "no"); }));
}

}  // namespace
}  // namespace kvcake::bench
