#include "store/write_turns.h"

#include <algorithm>

namespace kvcake {

void WriteTurns::SetReading(bool reading) {
  MutexLock lock(mutex_);
  if (reading_ == reading) return;
  reading_ = reading;
  if (reading) return;
  lingers_until_ = Clock::Real().Now() + options_.linger;
  changed_.NotifyAll();
}

WriteTurns::Turn WriteTurns::Wait() { return Turn(*this, Begin()); }

TimePoint WriteTurns::Begin() {
  MutexLock lock(mutex_);
  TimePoint now = Clock::Real().Now();
  const TimePoint latest = now + options_.wait_max;
  for (TimePoint next = NextTurn(now); now < next && now < latest; next = NextTurn(now)) {
    changed_.WaitUntil(mutex_, std::min(next, latest));
    now = Clock::Real().Now();
  }
  ++writing_;
  return now;
}

void WriteTurns::End(TimePoint began) {
  MutexLock lock(mutex_);
  --writing_;
  const TimePoint now = Clock::Real().Now();
  if (!IsRead(now)) return;
  const Seconds alone = std::min((now - began) * (1 / options_.share - 1), options_.wait_max);
  reads_alone_until_ = std::max(reads_alone_until_, now + alone);
  changed_.NotifyAll();
}

TimePoint WriteTurns::NextTurn(TimePoint now) const {
  if (!IsRead(now)) return now;
  const TimePoint turn = writing_ > 0 ? TimePoint::max() : reads_alone_until_;
  return reading_ ? turn : std::min(turn, lingers_until_);
}

}  // namespace kvcake
