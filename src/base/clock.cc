#include "base/clock.h"

#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <fstream>
#include <iterator>
#include <new>
#include <sstream>
#include <string>

namespace kvcake {
namespace {

class RealClock : public Clock {
 public:
  TimePoint Now() const override { return std::chrono::steady_clock::now(); }
};

}  // namespace

const Clock& Clock::Real() noexcept {
  // Never destroyed, as threads may ask it as the process ends; and not allocated, as those ask it
  // that must not fail.
  alignas(RealClock) static std::byte memory[sizeof(RealClock)];
  static const RealClock* const clock = new (memory) RealClock();
  return *clock;
}

TimePoint ProcessStart() {
  std::ifstream file("/proc/self/stat");
  const std::string stat(std::istreambuf_iterator<char>(file), {});
  // After the program's name in parentheses comes field 3; field 22 is the start, since the boot.
  std::istringstream fields(stat.substr(std::min(stat.rfind(')') + 1, stat.size())));
  std::string skipped;
  for (int field = 3; field < 22; ++field) fields >> skipped;
  double ticks = 0;
  timespec since_boot = {};
  const TimePoint now = Clock::Real().Now();
  if (!(fields >> ticks) || clock_gettime(CLOCK_BOOTTIME, &since_boot) != 0) return now;
  const double boot_s = static_cast<double>(since_boot.tv_sec) + 1e-9 * since_boot.tv_nsec;
  return now - Seconds(boot_s - ticks / static_cast<double>(sysconf(_SC_CLK_TCK)));
}

}  // namespace kvcake
