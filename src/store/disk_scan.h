// Scans of a store directory by one of the tiers that use it.
#pragma once

#include <cstdint>

#include "base/clock.h"
#include "store/disk_context.h"
#include "store/fault_log.h"

namespace kvcake {

// Brings what is known of the directory up to what is there, of every root, and tidies up: the
// temporaries of writers that are dead are removed, files of the wrong size moved away. Used by one
// thread at a time.
class DiskScan {
 public:
  explicit DiskScan(DiskContext& context) : context_(context) {}

  // Looks at every file, by so many threads.
  void Run(int threads = 1);
  // The first one: what changes from now on is what RunIfChanged looks for.
  void RunFirst(int threads);
  // Runs where a file came or went in any directory of chunks since this was last so.
  void RunIfChanged();
  // When the last one began.
  TimePoint began() const { return began_; }

 private:
  bool ChangedSince(int64_t unix_s);

  DiskContext& context_;
  FaultLog faults_{"looking for files"};
  TimePoint began_{};
  int64_t seen_unix_s_ = 0;  // until then RunIfChanged has seen all changes
};

}  // namespace kvcake
