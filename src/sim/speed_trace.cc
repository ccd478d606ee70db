#include "sim/speed_trace.h"

#include <algorithm>

#include "base/check.h"
#include "io/file_system.h"
#include "io/number_lines.h"

namespace kvcake {
namespace {

constexpr uint64_t kTraceBytesMax = 64 << 20;
constexpr double kSecondsMax = 1e9;

}  // namespace

SpeedTrace::SpeedTrace(std::vector<SpeedPoint> points) : points_(std::move(points)) {
  CHECK(!points_.empty() && points_[0].at_s == 0 && points_.back().speed > 0);
  for (size_t i = 0; i < points_.size(); ++i) {
    CHECK(points_[i].speed >= 0 && (i == 0 || points_[i].at_s > points_[i - 1].at_s));
  }
}

double SpeedTrace::SpeedAt(double s) const {
  const auto after = std::upper_bound(points_.begin(), points_.end(), s,
                                      [](double t, const SpeedPoint& p) { return t < p.at_s; });
  return after == points_.begin() ? 1 : std::prev(after)->speed;
}

double SpeedTrace::EndOf(double start_s, double work_s) const {
  if (points_.empty()) return start_s + work_s;
  auto next = std::upper_bound(points_.begin(), points_.end(), start_s,
                               [](double t, const SpeedPoint& p) { return t < p.at_s; });
  double now_s = start_s;
  for (; next != points_.end(); ++next) {
    const double speed = next == points_.begin() ? 1 : std::prev(next)->speed;
    const double possible_s = (next->at_s - now_s) * speed;
    if (possible_s >= work_s) return now_s + (work_s > 0 ? work_s / speed : 0);
    work_s -= possible_s;
    now_s = next->at_s;
  }
  return now_s + work_s / points_.back().speed;
}

Result<SpeedTrace> ParseSpeedTrace(std::string_view text, double speed_max) {
  std::vector<SpeedPoint> points;
  ASSIGN_OR_RETURN(const auto lines, ParseNumberLines(text, "seconds, speed"));
  for (const NumberLine& line : lines) {
    const SpeedPoint point{.at_s = line.values[0], .speed = line.values[1]};
    const int number = line.number;
    const bool grows = points.empty() ? point.at_s == 0 : point.at_s > points.back().at_s;
    if (!grows || !(point.at_s <= kSecondsMax)) {
      return Fail(ErrorCode::kInvalidArgument,
                  "line {}: the time {} must be 0 on the first line and grow after it", number,
                  point.at_s);
    }
    if (!(point.speed >= 0 && point.speed <= speed_max)) {
      return Fail(ErrorCode::kInvalidArgument, "line {}: the speed {} must be from 0 to {}", number,
                  point.speed, speed_max);
    }
    points.push_back(point);
  }
  if (points.back().speed == 0) {
    return Fail(ErrorCode::kInvalidArgument, "the last speed is 0, and would be for ever");
  }
  return SpeedTrace(std::move(points));
}

Result<SpeedTrace> ReadSpeedTrace(std::string_view flag, const std::string& path,
                                  double speed_max) {
  ASSIGN_OR_RETURN(const std::string text, ReadText(FileSystem::Real(), path, kTraceBytesMax));
  auto trace = ParseSpeedTrace(text, speed_max);
  if (!trace) return Fail(trace.error().code, "{} {}: {}", flag, path, trace.error().message);
  return trace;
}

}  // namespace kvcake
