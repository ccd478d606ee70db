#include "store/device_health.h"

#include <algorithm>

namespace kvcake {

void DeviceHealth::Check(TimePoint now) {
  if (const auto silent = watch_.Check(now)) breaker_.Overdue(*silent);
}

// Looks and writes begin without waking who checks: they cannot be overdue sooner than this.
TimePoint DeviceHealth::NextCheck(TimePoint now) const {
  const TimePoint latest = now + overdue_after_;
  const auto overdue = watch_.next_check();
  return overdue ? std::min(latest, *overdue) : latest;
}

}  // namespace kvcake
