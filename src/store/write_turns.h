// When a tier's writes may go on to the device: they stand back while it is read.
#pragma once

#include <utility>

#include "base/clock.h"
#include "base/mutex.h"

namespace kvcake {

struct WriteTurnsOptions {
  double share = 0.1;    // of the time, in (0, 1], that writes take while something is read
  Seconds linger{0.02};  // a device that was read a moment ago is about to be read again
  Seconds wait_max{10};  // for a turn: writes go on, however much is read
};

// While something is read one write at a time has a turn, and after each the device is the reads'
// alone for as long as makes up for it; otherwise writes do not wait. Thread-safe.
class WriteTurns {
 public:
  explicit WriteTurns(const WriteTurnsOptions& options) : options_(options) {}

  // Whether something is read, from now on. Never waits.
  void SetReading(bool reading) EXCLUDES(mutex_);

  // The turn of one write, which ends when it goes.
  class Turn {
   public:
    ~Turn() { turns_.End(began_); }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

   private:
    friend class WriteTurns;
    Turn(WriteTurns& turns, TimePoint began) : turns_(turns), began_(began) {}
    WriteTurns& turns_;
    const TimePoint began_;
  };
  // Waits until a write may begin.
  Turn Wait() EXCLUDES(mutex_);

 private:
  TimePoint Begin() EXCLUDES(mutex_);
  void End(TimePoint began) EXCLUDES(mutex_);
  bool IsRead(TimePoint now) const REQUIRES(mutex_) { return reading_ || now < lingers_until_; }
  // When a write may begin, unless something changes before.
  TimePoint NextTurn(TimePoint now) const REQUIRES(mutex_);

  const WriteTurnsOptions options_;

  Mutex mutex_;
  CondVar changed_;
  bool reading_ GUARDED_BY(mutex_) = false;
  TimePoint lingers_until_ GUARDED_BY(mutex_){};
  TimePoint reads_alone_until_ GUARDED_BY(mutex_){};  // or until nothing is read any more
  int writing_ GUARDED_BY(mutex_) = 0;
};

}  // namespace kvcake
