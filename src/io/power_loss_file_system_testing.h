// A FileSystem in memory that can lose its power, for tests: what was not synced survives or not,
// by seed, in any order.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "io/file_system.h"

namespace kvcake {

// As permissive as a file system can be: until File::Sync each 4 KiB of a write may be lost (zeros
// or nothing then are in its place), also where later ones are not, and so may its attributes;
// until SyncDir each change of a name may be. A rename is kept whole or not at all. Thread-safe;
// read by helper threads.
class PowerLossFileSystem : public FileSystem {
 public:
  explicit PowerLossFileSystem(uint64_t seed) : random_(seed) {}

  // After so many more calls that change or sync something the power is gone: until LosePower each
  // further one is kIo and does nothing.
  void CutAfter(uint64_t calls);
  // Whether that has happened.
  bool cut() const;
  // Everything is as after the next start: each change that was not synced is kept with this
  // probability. Files that are open go on as if they had been removed.
  void LosePower(double kept);
  // Changes lost so far.
  uint64_t lost() const;

  Result<std::unique_ptr<File>> OpenRead(const std::string& path, bool direct) override;
  Result<std::unique_ptr<File>> Create(const std::string& path, bool direct) override;
  Status Rename(const std::string& from, const std::string& to) override;
  Status SyncDir(const std::string& path) override;
  Status Remove(const std::string& path) override;
  Status RemoveDir(const std::string& path) override;
  Status MakeDirs(const std::string& path) override;
  Status SpreadSubdirs(const std::string& path) override;
  Result<std::vector<DirEntry>> List(const std::string& path) override;
  Result<FileInfo> Stat(const std::string& path) override;
  Status Touch(const std::string& path, int64_t mtime_s) override;
  Result<std::string> Attribute(const std::string& path, const char* name,
                                size_t bytes_max) override;
  Result<std::unique_ptr<FileLock>> TryLock(const std::string& path) override;
  Result<SpaceInfo> Space(const std::string& path) override;
  Result<std::unique_ptr<IoQueue>> NewQueue(const IoQueueOptions& options) override;

 private:
  class MemoryFile;
  // A file or, with names below it, a directory.
  struct Node {
    bool directory = false;
    int64_t mtime_s = 0;
    std::string now, durable;  // a file's bytes
    std::map<std::string, std::string> attributes = {}, durable_attributes = {};
  };
  using Names = std::map<std::string, std::shared_ptr<Node>>;  // by path
  // One change of names that is not durable: `removed` goes, `added` comes, both or neither.
  struct Change {
    std::string removed, added;  // either may be empty
    std::shared_ptr<Node> node;  // of `added`
  };

  static std::string ParentOf(const std::string& path);
  Result<std::shared_ptr<Node>> FindLocked(const std::string& path) const REQUIRES(mutex_);
  void ApplyLocked(Change change) REQUIRES(mutex_);
  // Counts a call that changes or syncs something; kIo when the power is gone.
  Status PowerLocked() REQUIRES(mutex_);
  static void Apply(const Change& change, Names& names);
  void LoseBytesLocked(Node& node, double kept) REQUIRES(mutex_);
  bool HappensLocked(double probability) REQUIRES(mutex_);

  mutable Mutex mutex_;
  // The nodes' contents are guarded, too.
  Names now_ GUARDED_BY(mutex_), durable_ GUARDED_BY(mutex_);
  std::vector<Change> changes_ GUARDED_BY(mutex_);  // in order
  std::mt19937_64 random_ GUARDED_BY(mutex_);
  uint64_t lost_ GUARDED_BY(mutex_) = 0;
  uint64_t calls_left_ GUARDED_BY(mutex_) = UINT64_MAX;  // until the power goes
};

}  // namespace kvcake
