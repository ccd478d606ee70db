#include "bench/ttft_cell.h"

#include <gtest/gtest.h>

namespace kvcake::bench {
namespace {

TEST(TtftCellTest, RatiosAreOfOneRepeatAndThenTheirMedian) {
  // In the order of kTtftPolicies: compute, load, as published, cake.
  const TtftCell cell{.spec = {},
                      .ttft_s = {{{1, 2, 4}, {2, 1, 8}, {0.8, 0.8, 2}, {0.5, 1.5, 2}}},
                      .load_s = {2, 1, 8},
                      .bounds = {{.whole_s = 0.4, .fractional_s = 0.3},
                                 {.whole_s = 0.6, .fractional_s = 0.5},
                                 {.whole_s = 1.8, .fractional_s = 1.7}},
                      .notes = {}};
  EXPECT_EQ(cell.ttft(Policy::kCompute), 2);
  EXPECT_EQ(cell.ttft(Policy::kLoad), 2);
  EXPECT_EQ(cell.ttft(Policy::kPublished), 0.8);
  EXPECT_EQ(cell.ttft(Policy::kCake), 1.5);
  EXPECT_EQ(cell.bound_s(), 0.6);
  EXPECT_EQ(cell.bound_fractional_s(), 0.5);
  EXPECT_DOUBLE_EQ(cell.efficiency(), 0.8) << "of 0.8, 0.4 and 0.9";
  EXPECT_DOUBLE_EQ(cell.efficiency(Policy::kPublished), 0.75) << "of 0.5, 0.75 and 0.9";
  EXPECT_DOUBLE_EQ(cell.against_better(), 0.5) << "of 0.5 / 1, 1.5 / 1 and 2 / 4";
  EXPECT_DOUBLE_EQ(cell.overlap(), 0.75) << "of 0.25 + 0.5, 1.5 + 0.75 and 0.25 + 0.5";
  EXPECT_DOUBLE_EQ(cell.spread(), 4);
}

}  // namespace
}  // namespace kvcake::bench
