// What a device has been asked for and has not answered yet, and which of it takes too long.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

#include "base/clock.h"
#include "base/mutex.h"

namespace kvcake {

// Thread-safe; overdue() is one load.
class OverdueWatch {
 public:
  enum class Kind { kRead, kLook, kClaim, kWrite };

  explicit OverdueWatch(Seconds overdue_after) : overdue_after_(overdue_after) {}

  // Something is asked of `path`, until End of the id that is returned.
  uint64_t Begin(Kind kind, std::string path) EXCLUDES(mutex_);
  void End(uint64_t id) EXCLUDES(mutex_);

  // Counts what has become overdue. The path of such a read, look or claim, if any: the device does
  // not answer. A write may hang where reads do not, as on a file system that is frozen.
  std::optional<std::string> Check(TimePoint now) EXCLUDES(mutex_);
  // When Check may find something next.
  std::optional<TimePoint> next_check() const EXCLUDES(mutex_);
  // How many are overdue, and not answered yet.
  int overdue(Kind kind) const { return overdue_[static_cast<size_t>(kind)]; }

 private:
  struct Asked {
    Kind kind;
    TimePoint at;
    std::string path;
    bool overdue = false;  // counted as such
  };

  const Seconds overdue_after_;
  // Counts, by kind, what is overdue in asked_. Atomic, so that overdue() needs no mutex: each
  // count is read alone. Check and End change it together with asked_, for which the compiler has
  // them hold the mutex.
  std::array<std::atomic<int>, 4> overdue_{};

  mutable Mutex mutex_;
  std::unordered_map<uint64_t, Asked> asked_ GUARDED_BY(mutex_);
  uint64_t next_id_ GUARDED_BY(mutex_) = 1;
};

// One operation of the caller's, from construction to destruction.
class Watched {
 public:
  Watched(OverdueWatch& watch, OverdueWatch::Kind kind, std::string path)
      : watch_(watch), id_(watch.Begin(kind, std::move(path))) {}
  ~Watched() { watch_.End(id_); }
  Watched(const Watched&) = delete;
  Watched& operator=(const Watched&) = delete;

 private:
  OverdueWatch& watch_;
  const uint64_t id_;
};

}  // namespace kvcake
