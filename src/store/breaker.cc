#include "store/breaker.h"

#include <spdlog/spdlog.h>

#include <utility>

namespace kvcake {

void Breaker::Failed(const std::string& path) {
  MutexLock lock(mutex_);
  path_ = path;
  hangs_ = false;  // an error is an answer
  if (++in_row_ >= failures_max_) OpenLocked(path);
}

void Breaker::Overdue(const std::string& path) {
  MutexLock lock(mutex_);
  path_ = path;
  hangs_ = true;
  OpenLocked(path);
}

void Breaker::OpenLocked(const std::string& path) {
  const TimePoint now = Clock::Real().Now();
  next_probe_ = now + probe_interval_;
  if (open_.exchange(true) || now < quiet_until_) return;
  quiet_until_ = now + Seconds(60);
  logged_ = true;
  spdlog::warn(
      "store: the device of {} does not answer: it is left alone, and its chunks are computed, "
      "until it does",
      path);
}

void Breaker::Succeeded() {
  if (!open_ && in_row_ == 0) return;
  MutexLock lock(mutex_);
  in_row_ = 0;
  hangs_ = false;
  open_ = false;
  if (std::exchange(logged_, false)) {
    spdlog::info("store: the device of {} answers again", path_);
  }
}

std::optional<std::string> Breaker::TakeProbe(TimePoint now) {
  MutexLock lock(mutex_);
  if (!open_ || now < next_probe_) return std::nullopt;
  next_probe_ = now + probe_interval_;
  return path_;
}

std::optional<TimePoint> Breaker::next_probe() const {
  MutexLock lock(mutex_);
  return open_ ? std::optional(next_probe_) : std::nullopt;
}

}  // namespace kvcake
