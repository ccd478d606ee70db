#include "store/link_trace.h"

#include "io/file_system.h"
#include "io/number_lines.h"

namespace kvcake {
namespace {

constexpr uint64_t kTraceBytesMax = 64 << 20;
constexpr double kRateMin = 1, kRateMax = 1e15, kSecondsMax = 1e9;

}  // namespace

Result<LinkTrace> ParseLinkTrace(std::string_view text) {
  LinkTrace trace;
  ASSIGN_OR_RETURN(const auto lines,
                   ParseNumberLines(text, "seconds, bytes per second, latency in seconds"));
  for (const NumberLine& line : lines) {
    const double at = line.values[0], rate = line.values[1], latency = line.values[2];
    const int number = line.number;
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
