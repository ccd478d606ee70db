// How a link changes with time, for the throttle: recorded or made up.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/status.h"

namespace kvcake {

// From `at` on, until the next point; the last one holds for ever.
struct LinkPoint {
  Seconds at{0};
  double rate_bytes_per_s = 0;
  Seconds latency{0};
};
using LinkTrace = std::vector<LinkPoint>;  // `at` grows

// Lines of "seconds bytes/s latency", the first two positive or `at` 0, latency in seconds; blank
// lines and those that begin with # are passed over. kInvalidArgument names the line.
Result<LinkTrace> ParseLinkTrace(std::string_view text);
// kInvalidArgument or the file's error; both name the path.
Result<LinkTrace> ReadLinkTrace(const std::string& path);

}  // namespace kvcake
