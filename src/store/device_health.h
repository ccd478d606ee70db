// Whether a tier's device is worth asking for anything: it is not while it fails, while it does not
// answer, or while it has lost all the reads it was given.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "base/clock.h"
#include "store/breaker.h"
#include "store/disk_tier_options.h"
#include "store/overdue_watch.h"

namespace kvcake {

// Thread-safe; whether something may be asked is a few loads.
class DeviceHealth {
 public:
  explicit DeviceHealth(const DiskTierOptions& options)
      : breaker_(options.failures_max, options.probe_interval),
        watch_(options.overdue_after),
        overdue_after_(options.overdue_after),
        look_threads_(options.call_threads) {}

  // Whether a read that has been taken on, or a look, may go on to the device.
  bool answers() const { return !breaker_.open(); }
  // Whether anything can be read, so that it is worth telling what is there.
  bool MayRead() const { return answers() && !reads_lost_ && !queue_fails_; }
  // A look that never returns has one of the threads that look; a claim has the only one.
  bool MayLook() const {
    return MayRead() && watch_.overdue(OverdueWatch::Kind::kLook) < look_threads_;
  }
  bool MayClaim() const {
    return MayRead() && MayWrite() && watch_.overdue(OverdueWatch::Kind::kClaim) == 0;
  }
  // Where reads fail writes may not, and what they leave is a file that a probe can read.
  bool MayWrite() const {
    return !breaker_.hangs() && watch_.overdue(OverdueWatch::Kind::kWrite) == 0;
  }
  int reads_overdue() const { return watch_.overdue(OverdueWatch::Kind::kRead); }

  // A look, a claim or a write is asked of `path`, until what is returned goes.
  Watched Watch(OverdueWatch::Kind kind, std::string path) {
    return Watched(watch_, kind, std::move(path));
  }
  // Likewise a read, until its EndRead.
  uint64_t BeginRead(std::string path) {
    return watch_.Begin(OverdueWatch::Kind::kRead, std::move(path));
  }
  void EndRead(uint64_t id) { watch_.End(id); }

  // The device's answers: a read of `path` failed; something was read.
  void Failed(const std::string& path) { breaker_.Failed(path); }
  void Succeeded() { breaker_.Succeeded(); }
  // Whether each buffer that a read may have is the device's, which has forgotten it: until one
  // comes back, nothing can be read.
  void SetReadsLost(bool lost) { reads_lost_ = lost; }

  // Whether nothing can be heard of reads, as the queue that they are in fails.
  void SetQueueFails(bool fails) { queue_fails_ = fails; }

  // Counts what has become overdue, and leaves the device alone for it.
  void Check(TimePoint now);
  // When Check is to be called again, though nothing was heard of the device.
  TimePoint NextCheck(TimePoint now) const;
  // The file to read a little of now, where a probe is due; its end is Failed or Succeeded.
  std::optional<std::string> TakeProbe(TimePoint now) { return breaker_.TakeProbe(now); }
  // When the next probe is due; nothing while the device answers.
  std::optional<TimePoint> next_probe() const { return breaker_.next_probe(); }

 private:
  Breaker breaker_;
  OverdueWatch watch_;
  const Seconds overdue_after_;
  const int look_threads_;
  std::atomic<bool> reads_lost_{false};
  std::atomic<bool> queue_fails_{false};
};

}  // namespace kvcake
