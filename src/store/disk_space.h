// How much room there is on the file system of a store, and whether removing files makes any.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

#include "base/clock.h"
#include "store/disk_context.h"

namespace kvcake {

// The free space that a store leaves to others: free_share_min of the file system. Thread-safe; all
// but Refresh only touches memory.
class DiskSpace {
 public:
  explicit DiskSpace(DiskContext& context) : context_(context) {}

  // Asks the file system; may block.
  void Refresh();
  // As it was when last asked, with what was written and removed here since; where it is known.
  std::optional<uint64_t> free_bytes() const;
  // The bytes that will be missing of what is to stay free when so many more have been written.
  uint64_t Missing(uint64_t bytes) const;
  // A file was written; one was removed.
  void Wrote(uint64_t bytes) { free_ -= static_cast<int64_t>(bytes); }
  void Removed(uint64_t bytes) { free_ += static_cast<int64_t>(bytes); }

 private:
  DiskContext& context_;
  std::atomic<bool> known_{false};
  std::atomic<int64_t> free_{0};  // an estimate, which may fall below 0
  std::atomic<int64_t> keep_{0};
};

// When to try again after evictions that were of no use, as others take the space or what was
// removed is kept by a snapshot: each time after twice as long.
class UselessEvictions {
 public:
  static constexpr Seconds kShortest{10};  // longer than a burst of others' writes
  static constexpr Seconds kLongest{640};

  bool MayEvict(TimePoint now) const { return now >= again_; }
  // So many bytes were removed, and `lost` fewer are free than there would be with them. They are
  // judged once `enough` were removed: writes under way blur what a few files have left.
  void Note(uint64_t removed, int64_t lost, uint64_t enough, TimePoint now);
  void Useless(TimePoint now);
  void Useful() { pause_ = kShortest; }

 private:
  Seconds pause_ = kShortest;
  TimePoint again_{};
  uint64_t removed_ = 0;  // not judged yet
  int64_t lost_ = 0;
};

}  // namespace kvcake
