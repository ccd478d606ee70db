#include "store/disk_upkeep.h"

#include <algorithm>
#include <utility>

namespace kvcake {
namespace {

// Parts of a core, at most.
constexpr double kScanShare = 0.02;
constexpr double kOverfullScanShare = 0.3;  // while there is more than may be
constexpr double kRoomShare = 0.3;

}  // namespace

void DiskUpkeep::Start(Seconds wait) {
  thread_.Soon([this] { RunFirst(); });
  MutexLock lock(mutex_);
  const TimePoint until = Clock::Real().Now() + wait;
  while (!is_scanned_ && scanned_.WaitUntil(mutex_, until)) continue;
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

void DiskUpkeep::RunFirst() {
  if (stop_) return;
  room_.ScanFirst();
  room_.Expire();
  {
    MutexLock lock(mutex_);
    is_scanned_ = true;
    scanned_.NotifyAll();
  }
  // At once where it holds too much, as when the capacity is smaller than it was.
  const Seconds pause = room_.IsOverfull() ? Seconds(0) : context_.options.upkeep_interval;
  thread_.At(Clock::Real().Now() + pause, [this] { Run(); });
}

void DiskUpkeep::Run() {
  if (stop_) return;
  if (IsScanDue()) Scan();
  const TimePoint began = Clock::Real().Now();
  room_.Expire();
  room_.Shrink();
  const TimePoint now = Clock::Real().Now();
  const Seconds pause = std::max(context_.options.upkeep_interval, (now - began) / kRoomShare);
  thread_.At(now + pause, [this] { Run(); });
}

bool DiskUpkeep::IsScanDue() const {
  const double share = room_.IsOverfull() ? kOverfullScanShare : kScanShare;
  return scan_clock_.Now() >= scan_ended_ + scan_took_ / share;
}

void DiskUpkeep::Scan() {
  const TimePoint began = scan_clock_.Now();
  room_.Refresh();
  scan_ended_ = scan_clock_.Now();
  scan_took_ = scan_ended_ - began;
}

}  // namespace kvcake
