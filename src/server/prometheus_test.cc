#include "server/prometheus.h"

#include <gtest/gtest.h>

#include <limits>

namespace kvcake {
namespace {

TEST(PrometheusTest, WritesTheTextFormat) {
  PrometheusText text(PrometheusText::Labels{{"model", "a\"b\\c\nd"}});
  text.AddCounter("n_total", "What it is.", 3, {{"tier", "disk"}});
  text.AddCounter("n_total", "", 4.5, {{"tier", "ram"}});
  text.AddGauge("g", "Now.", std::numeric_limits<double>::infinity());
  EXPECT_EQ(text.text(), R"(# HELP n_total What it is.
# TYPE n_total counter
n_total{model="a\"b\\c\nd",tier="disk"} 3
n_total{model="a\"b\\c\nd",tier="ram"} 4.5
# HELP g Now.
# TYPE g gauge
g{model="a\"b\\c\nd"} +Inf
)");
}

// A scrape with a label that is no UTF-8 is refused, with all that is in it.
TEST(PrometheusTest, LabelsAreUtf8) {
  PrometheusText text;
  text.AddGauge("g", "Now.", 1, {{"model", "a\xff"}});
  EXPECT_TRUE(text.text().ends_with("g{model=\"a\uFFFD\"} 1\n")) << text.text();
}

TEST(PrometheusTest, BucketsOfAHistogramAddUp) {
  Histogram histogram({0.5, 1, 2});
  for (const double value : {0.1, 0.5, 0.75, 2.0, 3.0}) histogram.Observe(value);
  PrometheusText text;
  text.AddHistogram("h", "Sizes.", histogram);
  EXPECT_EQ(text.text(), R"(# HELP h Sizes.
# TYPE h histogram
h_bucket{le="0.5"} 2
h_bucket{le="1"} 3
h_bucket{le="2"} 4
h_bucket{le="+Inf"} 5
h_sum 6.35
h_count 5
)");
}

}  // namespace
}  // namespace kvcake
