#include "bench/metrics_text.h"

#include <algorithm>
#include <cstdlib>
#include <string>

namespace kvcake::bench {

double MetricSum(std::string_view text, std::string_view name) {
  double sum = 0;
  while (!text.empty()) {
    std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    if (!line.starts_with(name)) continue;
    line.remove_prefix(name.size());
    // Another metric's name may go on from here.
    if (!line.starts_with('{') && !line.starts_with(' ')) continue;
    const size_t labels = line.starts_with('{') ? line.rfind('}') + 1 : 0;
    sum += std::strtod(std::string(line.substr(labels)).c_str(), nullptr);
  }
  return sum;
}

}  // namespace kvcake::bench
