// Numbers in the text that a server gives to Prometheus.
#pragma once

#include <string_view>

namespace kvcake::bench {

// The sum of a metric's values, whatever their labels; 0 when it is not there.
double MetricSum(std::string_view text, std::string_view name);

}  // namespace kvcake::bench
