// What a disk tier does by itself while it is open, on a thread of its own.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "base/callback_thread.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "store/disk_context.h"
#include "store/disk_room.h"

namespace kvcake {

// Counts what other processes have written and removes what is too much or too old, however little
// is written here, so that the directory keeps to its capacity. Thread-safe; no call but Start
// blocks.
class DiskUpkeep {
 public:
  // All outlive it; the clock tells how long scans take, and when the next is due.
  DiskUpkeep(DiskContext& context, DiskRoom& room, const Clock& scan_clock = Clock::Real())
      : context_(context), room_(room), scan_clock_(scan_clock) {}
  ~DiskUpkeep() { Stop(); }

  // Begins, with a look at all of the directory, for which it waits so long at most.
  void Start(Seconds wait) EXCLUDES(mutex_);
  // Nothing more is begun, but for what has been asked for, and what is going on ends soon.
  void Stop();
  // Says that the files were used now_s, for other processes to see. A read-only store keeps the
  // mtimes that it has.
  void Touch(std::vector<std::string> paths, int64_t now_s);

 private:
  void RunFirst() EXCLUDES(mutex_);
  void Run();
  // Scans are a small part of the time; between them what is known to be too much goes, and space
  // that others take is made anew.
  bool IsScanDue() const;
  void Scan();

  DiskContext& context_;
  DiskRoom& room_;
  const Clock& scan_clock_;
  std::atomic<bool> stop_{false};

  Mutex mutex_;
  CondVar scanned_;
  bool is_scanned_ GUARDED_BY(mutex_) = false;

  // The last scan; touched by the thread alone.
  TimePoint scan_ended_{};
  Seconds scan_took_{};

  CallbackThread thread_;  // last: it ends before the rest goes
};

}  // namespace kvcake
