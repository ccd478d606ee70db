#include "bench/harness.h"

#include <gtest/gtest.h>

namespace kvcake::bench {
namespace {

TEST(HarnessTest, MedianOfOddAndEven) {
  EXPECT_EQ(Median({3, 1, 2}), 2);
  EXPECT_EQ(Median({4, 1, 3, 2}), 2.5);
  EXPECT_EQ(Median({7}), 7);
}

}  // namespace
}  // namespace kvcake::bench
