#include "bench/crowd.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace kvcake::bench {
namespace {

TEST(CrowdTest, TheBoundIsReachedByHandForOnePrompt) {
  const Crowd crowd{.compute = {.b = 1e-4, .samples = 1}, .chunk_s = 128e-4, .prompts = {10}};
  // Five chunks in each lane, as they cost the same.
  EXPECT_NEAR(LeastTotal(crowd, {10}), 5 * 128e-4, 1e-12);
  EXPECT_NEAR(LeastTotal(crowd, {4, 6}), 5 * 128e-4, 1e-12);
  EXPECT_NEAR(LeastTimes(crowd).mean_s, LeastTimes(crowd).total_s, 1e-12);
}

TEST(CrowdTest, TwoToEightKeepBothLanesBusy) {
  constexpr int kCrowds = 200;
  double total = 0, mean = 0, fifo_mean = 0, fair_mean = 0;
  for (uint64_t seed = 0; seed < kCrowds; ++seed) {
    const Crowd crowd = RandomCrowd(seed);
    const CrowdTimes least = LeastTimes(crowd);
    const CrowdTimes srpt = RunCrowd(crowd, LoadOrder::kSrpt);
    // A fixed part is paid more often than the bound believes, never less.
    EXPECT_GE(srpt.total_s, 0.999 * least.total_s) << seed;
    EXPECT_GE(srpt.mean_s, 0.999 * least.mean_s) << seed;
    EXPECT_LE(srpt.total_s, 1.25 * least.total_s) << seed;
    total += least.total_s / srpt.total_s / kCrowds;
    mean += least.mean_s / srpt.mean_s / kCrowds;
    fifo_mean += least.mean_s / RunCrowd(crowd, LoadOrder::kFifo).mean_s / kCrowds;
    fair_mean += least.mean_s / RunCrowd(crowd, LoadOrder::kFair).mean_s / kCrowds;
  }
  std::printf("bound / total %.3f; bound / mean: srpt %.3f fifo %.3f fair %.3f\n", total, mean,
              fifo_mean, fair_mean);
  EXPECT_GE(total, 0.95);
  EXPECT_GE(mean, 0.9);
  EXPECT_GT(mean, fifo_mean);
  EXPECT_GT(mean, fair_mean);
}

}  // namespace
}  // namespace kvcake::bench
