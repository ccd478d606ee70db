#include "store/disk_upkeep.h"

#include <algorithm>
#include <utility>

namespace kvcake {
namespace {

constexpr double kUpkeepShare = 0.02;   // of a core, at most
constexpr double kOverfullShare = 0.3;  // while there is more than may be

}  // namespace

void DiskUpkeep::Start() {
  const Seconds pause = room_.IsOverfull() ? Seconds(0) : context_.options.upkeep_interval;
  thread_.At(Clock::Real().Now() + pause, [this] { Run(); });
}

void DiskUpkeep::Stop() {
  stop_ = true;
  room_.StopUpkeep();
}

void DiskUpkeep::Touch(std::vector<std::string> paths, int64_t now_s) {
  thread_.Soon([this, now_s, paths = std::move(paths)] {
    for (const std::string& path : paths) (void)context_.fs.Touch(path, now_s);
  });
}

void DiskUpkeep::Run() {
  if (stop_) return;
  const TimePoint began = Clock::Real().Now();
  room_.Refresh();
  room_.Expire();
  room_.Shrink();
  const TimePoint now = Clock::Real().Now();
  const double share = room_.IsOverfull() ? kOverfullShare : kUpkeepShare;
  const Seconds pause = std::max(context_.options.upkeep_interval, (now - began) / share);
  thread_.At(now + pause, [this] { Run(); });
}

}  // namespace kvcake
