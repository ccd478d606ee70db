#include "store/overdue_watch.h"

#include <algorithm>
#include <utility>

namespace kvcake {

uint64_t OverdueWatch::Begin(Kind kind, std::string path) {
  MutexLock lock(mutex_);
  const uint64_t id = next_id_++;
  asked_.emplace(id, Asked{kind, Clock::Real().Now(), std::move(path)});
  return id;
}

void OverdueWatch::End(uint64_t id) {
  MutexLock lock(mutex_);
  const auto asked = asked_.extract(id);
  if (!asked.empty() && asked.mapped().overdue) {
    --overdue_[static_cast<size_t>(asked.mapped().kind)];
  }
}

std::optional<std::string> OverdueWatch::Check(TimePoint now) {
  std::optional<std::string> silent;
  MutexLock lock(mutex_);
  for (auto& [id, asked] : asked_) {
    if (asked.overdue || now - asked.at < overdue_after_) continue;
    asked.overdue = true;
    ++overdue_[static_cast<size_t>(asked.kind)];
    if (asked.kind != Kind::kWrite) silent = asked.path;
  }
  return silent;
}

std::optional<TimePoint> OverdueWatch::next_check() const {
  std::optional<TimePoint> next;
  MutexLock lock(mutex_);
  for (const auto& [id, asked] : asked_) {
    if (asked.overdue) continue;
    const TimePoint at = asked.at + overdue_after_;
    next = next ? std::min(*next, at) : at;
  }
  return next;
}

}  // namespace kvcake
