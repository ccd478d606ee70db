#include "sim/compute_share.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace kvcake {
namespace {

TEST(ComputeShareTest, SharesAddUpToWholeChunks) {
  for (const double share : {1.0, 0.875, 0.5, 0.3, 0.125, 0.01}) {
    ComputeShare budget(SpeedTrace({{0, share}}), 512, 128);
    int chunks = 0;
    for (int step = 1; step <= 1000; ++step) {
      const int now = std::min(4, budget.Budget(step));
      chunks += now;
      budget.Step(step, now);
      EXPECT_NEAR(chunks, share * 4 * step, 1.01) << share;
    }
    EXPECT_NEAR(budget.typical(), share, 1e-9);
  }
}

TEST(ComputeShareTest, ZeroIsLegalAndWhatIsNotUsedIsNotHoarded) {
  ComputeShare budget(SpeedTrace({{0, 0}, {10, 1}, {20, 0.25}}), 512, 128);
  for (int step = 0; step < 10; ++step) {
    EXPECT_EQ(budget.Budget(step), 0);
    budget.Step(step, 0);
  }
  EXPECT_EQ(budget.Budget(10), 4);
  for (int step = 10; step < 20; ++step) budget.Step(step, 0);
  EXPECT_LE(budget.Budget(20), 2) << "one of this step, one kept";
}

// A restoration that waits runs no steps; what the others leave it must not stay what it was.
TEST(ComputeShareTest, WaitingSeesTheShareChange) {
  ComputeShare budget(SpeedTrace({{0, 0.01}, {5, 1}}), 512, 128);
  (void)budget.Budget(0);
  EXPECT_NEAR(budget.typical(), 0.01, 1e-9);
  (void)budget.Budget(6);
  EXPECT_NEAR(budget.typical(), 1, 1e-9) << "no step yet: what there is now";

  ComputeShare later(SpeedTrace({{0, 0.01}, {5, 1}}), 512, 128);
  for (int step = 0; step < 5; ++step) {
    (void)later.Budget(step);
    later.Step(step, 0);
  }
  (void)later.Budget(5);
  EXPECT_LT(later.typical(), 0.02);
  (void)later.Budget(25);
  EXPECT_GT(later.typical(), 0.9) << "twenty steps have passed";
}

}  // namespace
}  // namespace kvcake
