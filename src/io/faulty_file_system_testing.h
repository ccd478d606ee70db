// A FileSystem that fails by seed, for tests: through the same interface as the real thing.
#pragma once

#include <cerrno>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "io/file_system.h"

namespace kvcake {

// Probabilities in [0, 1], drawn for each call.
struct FileFaults {
  double open_error = 0;    // kIo from OpenRead
  double create_error = 0;  // from Create
  double read_error = 0;    // kIo
  double read_stall = 0;    // no answer until ReleaseStalled
  double open_stall = 0;    // of OpenRead, likewise
  double stat_stall = 0;    // of Stat, likewise
  double change_stall = 0;  // of any call that would change something, likewise
  double write_stall = 0;   // of a write alone, likewise
  double rename_stall = 0;  // of Rename alone, likewise
  double sync_stall = 0;    // of Sync and SyncDir, likewise
  double sync_error = 0;    // kIo from Sync and SyncDir
  double info_error = 0;    // kIo from File::Info
  double no_attribute = 0;  // kUnsupported from whatever sets or reads one
  double list_error = 0;    // kIo from List
  double short_read = 0;    // a part of what was asked for, a multiple of 4 KiB where possible
  double bit_flip = 0;      // one bit of what was read
  double write_error = 0;   // kIo
  double short_write = 0;
  double no_space = 0;           // kNoSpace from a write
  double no_space_at_close = 0;  // kNoSpace from Close: nothing of what was written is kept
  double direct_error = 0;       // kIo from any read or write of a file opened for direct I/O
  double lost_write = 0;         // said to be written, but is not
  double rename_error = 0;       // kIo
  // Fails any call that would change something (Create, a write, Rename, MakeDirs, Remove, Touch,
  // ...).
  double change_error = 0;
  // What the injected errors of reads and opens, of Create alone, and of changes, are called.
  int read_errno = EIO;
  int create_errno = EIO;
  int change_errno = EROFS;
};

// Decorates `inner`, which outlives it. Thread-safe. Files are read by helper threads, never by
// io_uring, so that every read meets the faults.
class FaultyFileSystem : public FileSystem {
 public:
  FaultyFileSystem(FileSystem& inner, uint64_t seed) : inner_(inner), random_(seed) {}

  void Set(const FileFaults& faults);
  void ReleaseStalled();
  uint64_t faults() const;  // injected so far

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
  Result<SpaceInfo> Space(const std::string& path) override { return inner_.Space(path); }
  Result<std::unique_ptr<IoQueue>> NewQueue(const IoQueueOptions& options) override;

 private:
  class FaultyFile;
  // Whether this call meets the fault; `which` is a member of the probabilities set now.
  bool Draw(double FileFaults::*which) EXCLUDES(mutex_);
  bool DrawLocked(double FileFaults::*which) REQUIRES(mutex_);
  uint64_t Below(uint64_t n) EXCLUDES(mutex_);  // uniform in [0, n)

  // The error of a call that changes `path`, when it meets one; also stalls.
  Status Change(const char* action, const std::string& path) EXCLUDES(mutex_);
  Status SyncFault(const std::string& path) EXCLUDES(mutex_);
  Status AttributeFault(const std::string& path) EXCLUDES(mutex_);
  Error ReadError(const char* action, const std::string& path) EXCLUDES(mutex_);
  void MaybeStall(double FileFaults::*which) EXCLUDES(mutex_);

  FileSystem& inner_;
  mutable Mutex mutex_;
  CondVar released_;
  FileFaults faults_ GUARDED_BY(mutex_);
  std::mt19937_64 random_ GUARDED_BY(mutex_);
  uint64_t count_ GUARDED_BY(mutex_) = 0;
  uint64_t releases_ GUARDED_BY(mutex_) = 0;
};

}  // namespace kvcake
