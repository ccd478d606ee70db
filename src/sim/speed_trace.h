// How a lane's speed changes while time passes.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace kvcake {

// From at_s on, until the next point; the last one holds for ever.
struct SpeedPoint {
  double at_s = 0;
  double speed = 1;  // a share of the lane's own speed; 0: it stands still
};

class SpeedTrace {
 public:
  SpeedTrace() = default;  // 1, always
  // at_s grows from 0, speeds are at least 0 and the last is above it (CHECKed).
  explicit SpeedTrace(std::vector<SpeedPoint> points);

  double SpeedAt(double s) const;
  // When work begun at start_s is done that takes work_s at speed 1.
  double EndOf(double start_s, double work_s) const;

 private:
  std::vector<SpeedPoint> points_;
};

// Lines of "seconds speed", speeds from 0 to speed_max; blank lines and those that begin with # are
// passed over. kInvalidArgument names the line.
Result<SpeedTrace> ParseSpeedTrace(std::string_view text, double speed_max);
// kInvalidArgument or the file's error; both name `flag` and the path.
Result<SpeedTrace> ReadSpeedTrace(std::string_view flag, const std::string& path, double speed_max);

}  // namespace kvcake
