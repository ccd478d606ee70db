// The files of a tier that turned out to be bad.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>

#include "store/fault_log.h"
#include "store/quarantine.h"
#include "store/store_dir.h"

namespace kvcake {

// Takes them out of the way, within the bounds of the quarantine; logs and counts them.
// Thread-safe.
class BadFiles {
 public:
  // `fs` outlives it.
  BadFiles(FileSystem& fs, StoreDir store, const QuarantineBounds& bounds)
      : fs_(fs), store_(std::move(store)), bounds_(bounds) {}

  // Moves a bad file to the quarantine, or deletes it when that is full, unless another has its
  // name by now. False when it is still there.
  bool MoveAway(const std::string& path, const Error& reason, const FileInfo& bad);
  // Files that were moved or deleted.
  uint64_t count() const { return count_; }

 private:
  FileSystem& fs_;
  const StoreDir store_;
  const QuarantineBounds bounds_;
  FaultLog faults_{"moving bad files away"};
  std::atomic<uint64_t> count_{0};
};

}  // namespace kvcake
