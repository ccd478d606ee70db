#include "bench/metrics_text.h"

#include <gtest/gtest.h>

namespace kvcake::bench {
namespace {

constexpr const char* kText =
    "# HELP hits Tokens.\n# TYPE hits counter\n"
    "hits{tier=\"ram\"} 3\nhits{tier=\"} 9\"} 4.5\nhits_total{tier=\"ram\"} 100\n"
    "answers 7\nbig{a=\"b\"} 1e+06";

TEST(MetricSum, AddsAllLabelsOfOneName) {
  EXPECT_EQ(MetricSum(kText, "hits"), 7.5);
  EXPECT_EQ(MetricSum(kText, "hits_total"), 100);
  EXPECT_EQ(MetricSum(kText, "answers"), 7);
  EXPECT_EQ(MetricSum(kText, "big"), 1e6);
  EXPECT_EQ(MetricSum(kText, "none"), 0);
  EXPECT_EQ(MetricSum("", "hits"), 0);
}

}  // namespace
}  // namespace kvcake::bench
