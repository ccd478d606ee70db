// Scans of a store directory by one of the tiers that use it.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <unordered_map>

#include "base/clock.h"
#include "store/disk_context.h"
#include "store/fault_log.h"

namespace kvcake {

// Brings what is known of the directory up to what is there, of every root, and tidies up: the
// temporaries of writers that are dead are removed, files of the wrong size moved away. Used by one
// thread at a time, but for Stop.
//
// A temporary may be of a process that no pid here tells of, and have its time from another clock
// than ours. So the one of a writer that seems dead, or that seems very old, is a suspect only, and
// is removed when this process has seen it unchanged for temporary_age_min. For the same reason
// directories' times are compared with one another alone.
class DiskScan {
 public:
  // The clock outlives it.
  explicit DiskScan(DiskContext& context, const Clock& clock = Clock::Real())
      : context_(context), clock_(clock) {}

  // Looks at every file, by so many threads.
  void Run(int threads = 1);
  // The first one: what changes from now on is what RunIfChanged looks for.
  void RunFirst(int threads);
  // Runs where a file came or went in any directory of chunks since this was last so.
  void RunIfChanged();
  // Whether rescan_interval has passed since the last one ended: one that takes longer than that
  // is not begun again at once.
  bool IsDue() const { return clock_.Now() - ended_ > context_.options.rescan_interval; }
  // Removes suspects whose time has come.
  void Sweep();
  // Ends the one that is going on, and any later one, with the directory that it is at.
  void Stop() { stop_ = true; }

 private:
  struct Suspect {
    FileInfo info;
    TimePoint since;
  };
  using Suspects = std::unordered_map<std::string, Suspect>;  // by path

  // Whether the directories of chunks have other times than when this was last asked; or may have
  // changed since, within the second that they were first seen to have these.
  bool NoteTimes();
  // 0 where the store's own directory cannot be examined.
  uint64_t DigestOfTimes() const;

  DiskContext& context_;
  const Clock& clock_;
  FaultLog faults_{"looking for files"};
  std::atomic<bool> stop_{false};
  Suspects suspects_;
  TimePoint ended_{};
  uint64_t times_ = 0;  // the last DigestOfTimes
  // When it was first that, and when that was last a reason to scan.
  TimePoint changed_{}, heeded_{};
};

}  // namespace kvcake
