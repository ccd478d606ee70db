#include "store/fault_log.h"

#include <spdlog/spdlog.h>

namespace kvcake {

void FaultLog::Failed(const Error& error) {
  MutexLock lock(mutex_);
  const TimePoint now = Clock::Real().Now();
  if (!failing_ && now >= quiet_until_) said_ = 0;
  const uint32_t bit = 1u << static_cast<int>(error.code);
  if ((said_ & bit) != 0) return;
  said_ |= bit;
  failing_ = true;
  quiet_until_ = now + Seconds(60);
  spdlog::warn("store: {} fails: {}; further failures are only counted", what_, error.message);
}

void FaultLog::Succeeded() {
  if (!failing_) return;
  MutexLock lock(mutex_);
  if (failing_.exchange(false)) spdlog::info("store: {} works again", what_);
}

}  // namespace kvcake
