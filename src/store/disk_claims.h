// Which chunks are being computed by which of the processes that share a directory.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/callback_thread.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "store/disk_context.h"
#include "store/tier.h"

namespace kvcake {

// A claim is a file of the key's name that its owner has locked; the kernel unlocks it when the
// process ends. Nothing is written to it, so it cannot be damaged; which file it is, and its time
// as a number that changes, tell a new claim from an old one, so no two clocks are compared. One
// thread looks at files, and calls every `done`. Thread-safe. The destructor waits until all that
// was asked has been answered, and gives up all claims.
class DiskClaims {
 public:
  // Outlives it.
  explicit DiskClaims(DiskContext& context) : context_(context) {}
  ~DiskClaims();

  // Tier::Claim. Also false for a while after a claim could not be made, as on a directory that
  // this process may not change, and where the device does not answer.
  bool Claim(ClaimRequest request) EXCLUDES(mutex_);
  // Tier::Disclaim. Where no claim is held, costs nothing.
  void Disclaim(std::span<const ChunkKey> keys);
  // Makes no claims from now on.
  void Stop() { stop_ = true; }

 private:
  struct Held {
    std::unique_ptr<FileLock> lock;
    FileInfo file;
    TimePoint until;
  };
  struct Seen {
    FileInfo file;
    TimePoint since;
    TimePoint asked;
  };

  // All on the thread.
  void Answer(const ClaimRequest& request) EXCLUDES(mutex_);
  ClaimState StateOf(const ChunkKey& key, Seconds lasts) EXCLUDES(mutex_);
  bool IsStored(const ChunkKey& key);
  Result<ClaimState> Take(const ChunkKey& key, Seconds lasts);
  bool HasExpired(const ChunkKey& key, const FileInfo& file, Seconds lasts);
  Result<bool> EndTheirs(const std::string& path, const FileInfo& expired);
  void Hold(const ChunkKey& key, Held held) EXCLUDES(mutex_);
  void End(const ChunkKey& key) EXCLUDES(mutex_);
  void EndDisclaimed() EXCLUDES(mutex_);
  void EndExpired() EXCLUDES(mutex_);
  // Comes back when the first claim that is held is over.
  void SetTimer();
  void Sweep();
  void SweepNext();
  void RemoveLeftover(const std::string& path);
  std::string PathOf(const ChunkKey& key) const;
  Status CheckDir() const;
  void NoteFailed(const Error& error) EXCLUDES(mutex_);

  DiskContext& context_;
  std::atomic<bool> stop_{false};

  // The thread's own.
  std::unordered_map<ChunkKey, Held> held_;
  std::unordered_map<ChunkKey, Seen> seen_;  // of other processes
  std::optional<TimePoint> timer_;           // the next time at which it comes back
  bool swept_ = false;
  std::vector<ChunkKey> leftovers_;  // names of files, to be looked at

  Mutex mutex_;
  std::unordered_set<ChunkKey> claimed_ GUARDED_BY(mutex_);     // those of held_
  std::unordered_set<ChunkKey> disclaimed_ GUARDED_BY(mutex_);  // of them, to be ended
  TimePoint paused_until_ GUARDED_BY(mutex_){};

  std::optional<CallbackThread> thread_{std::in_place};  // last: it ends before the rest goes
};

}  // namespace kvcake
