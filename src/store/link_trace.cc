#include "store/link_trace.h"

#include <sstream>

#include "io/file_system.h"

namespace kvcake {
namespace {

constexpr uint64_t kTraceBytesMax = 64 << 20;
constexpr double kRateMin = 1, kRateMax = 1e15, kSecondsMax = 1e9;

}  // namespace

Result<LinkTrace> ParseLinkTrace(std::string_view text) {
  LinkTrace trace;
  std::istringstream lines{std::string(text)};
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    const size_t first = line.find_first_not_of(" \t\r");
    if (first == std::string::npos || line[first] == '#') continue;
    std::istringstream fields(line);
    double at = 0, rate = 0, latency = 0;
    std::string rest;
    if (!(fields >> at >> rate >> latency) || fields >> rest) {
      return Fail(ErrorCode::kInvalidArgument,
                  "line {} is not three numbers: seconds, bytes per second, latency in seconds",
                  number);
    }
    const bool grows = trace.empty() ? at >= 0 : at > trace.back().at.count();
    if (!grows || at > kSecondsMax) {
      return Fail(ErrorCode::kInvalidArgument,
                  "line {}: the time {} must be at least 0 and later than the line before", number,
                  at);
    }
    if (!(rate >= kRateMin && rate <= kRateMax)) {
      return Fail(ErrorCode::kInvalidArgument, "line {}: {} bytes/s must be in [1, 1e15]", number,
                  rate);
    }
    if (!(latency >= 0 && latency <= kSecondsMax)) {
      return Fail(ErrorCode::kInvalidArgument, "line {}: a latency of {} s must be in [0, 1e9]",
                  number, latency);
    }
    trace.push_back({.at = Seconds(at), .rate_bytes_per_s = rate, .latency = Seconds(latency)});
  }
  if (trace.empty()) return Fail(ErrorCode::kInvalidArgument, "it has no line of numbers");
  return trace;
}

Result<LinkTrace> ReadLinkTrace(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, ReadText(FileSystem::Real(), path, kTraceBytesMax));
  auto trace = ParseLinkTrace(text);
  if (!trace) {
    return Fail(trace.error().code, "--load-trace {}: {}", path, trace.error().message);
  }
  return trace;
}

}  // namespace kvcake
