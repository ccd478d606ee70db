// The operating system's files as one small virtual class, so that a decorator can inject faults.
//
// Errors: kNotFound (no such file), kNoSpace (no bytes or no inodes are left, or quota),
// kResourceExhausted (no descriptors), kCorrupt (what is there is not a regular file),
// kInvalidArgument (this user may not), kUnsupported (the file system does not do it), kIo
// (anything else); messages name the path, the reason and, where people can do something about it,
// the remedy. Thread-safe, except that one File is used by one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace kvcake {

class IoQueue;
struct IoQueueOptions;

// What direct I/O asks of buffers, offsets and lengths.
constexpr uint64_t kDirectAlign = 4096;

struct FileInfo {
  enum class Kind { kRegular, kDirectory, kOther };
  Kind kind = Kind::kOther;  // of the name itself: a symbolic link is kOther
  uint64_t bytes = 0;
  int64_t mtime_s = 0;  // seconds since 1970
  // Which file it is, whatever its name; no two that exist are the same. 0: not known.
  uint64_t device = 0, inode = 0;
};

struct DirEntry {
  std::string name;
  FileInfo info;
};

// How much a whole file system has room for.
struct SpaceInfo {
  uint64_t free_bytes = 0;  // that this user may take
  uint64_t bytes = 0;
};

// An open regular file; closed by its destructor.
class File {
 public:
  virtual ~File() = default;

  // One call to the operating system: may be short; a read of 0 bytes is the end of the file.
  virtual Result<size_t> ReadAt(std::span<std::byte> buffer, uint64_t offset) = 0;
  virtual Result<size_t> WriteAt(std::span<const std::span<const std::byte>> buffers,
                                 uint64_t offset) = 0;
  virtual Result<FileInfo> Info() = 0;
  // Returns when what was written, attributes too, is on the device.
  virtual Status Sync() = 0;
  // Ends the file's use: nothing may be called after. File systems of networks say only now that
  // they had no room for what was written. The destructor does the same, and tells nobody.
  virtual Status Close() = 0;
  // Sets an extended attribute ("user. ..."); kUnsupported where the file system has none.
  virtual Status SetAttribute(const char* name, std::string_view value) = 0;
  // The descriptor, or -1 when the file is not the kernel's (fakes and decorators).
  virtual int fd() const = 0;
  virtual bool direct() const = 0;  // opened with O_DIRECT
  virtual const std::string& path() const = 0;
};

// Held until destroyed.
class FileLock {
 public:
  virtual ~FileLock() = default;

  // Describes the file that is locked, whatever has its name by now.
  virtual Result<FileInfo> Info() = 0;
};

class FileSystem {
 public:
  virtual ~FileSystem() = default;
  static FileSystem& Real();

  // Where direct I/O is refused the file is opened without, with one loud warning per process.
  // Never follows a symbolic link at the end of the path, never blocks on a pipe.
  virtual Result<std::unique_ptr<File>> OpenRead(const std::string& path, bool direct) = 0;
  // A new file, mode 0600; fails when the name exists.
  virtual Result<std::unique_ptr<File>> Create(const std::string& path, bool direct) = 0;
  virtual Status Rename(const std::string& from, const std::string& to) = 0;
  // Returns when the names in the directory are on the device.
  virtual Status SyncDir(const std::string& path) = 0;
  virtual Status Remove(const std::string& path) = 0;     // a file or link
  virtual Status RemoveDir(const std::string& path) = 0;  // an empty directory
  // Makes the directory and those above it, mode 0700; ok when it exists.
  virtual Status MakeDirs(const std::string& path) = 0;
  // Hints that the directories made in this one from now on, and their files, had better lie apart
  // from each other; kUnsupported where the file system takes no such hint (all but ext2 to ext4).
  // Follows no symbolic link at the end of the path.
  virtual Status SpreadSubdirs(const std::string& path) = 0;
  // Every entry but "." and "..", in no order; entries that vanish meanwhile are left out, those
  // that cannot be examined are of kind kOther.
  virtual Result<std::vector<DirEntry>> List(const std::string& path) = 0;
  virtual Result<FileInfo> Stat(const std::string& path) = 0;
  virtual Status Touch(const std::string& path, int64_t mtime_s) = 0;
  // An extended attribute of the name itself, of a symbolic link too: kNotFound where there is
  // none, kUnsupported where the file system has none, kResourceExhausted beyond bytes_max.
  virtual Result<std::string> Attribute(const std::string& path, const char* name,
                                        size_t bytes_max) = 0;
  // Null when another holds it (also another lock of this process). Made, mode 0600, if missing.
  virtual Result<std::unique_ptr<FileLock>> TryLock(const std::string& path) = 0;
  // Asks the file system that the path is on.
  virtual Result<SpaceInfo> Space(const std::string& path) = 0;
  // A queue that can read this file system's files.
  virtual Result<std::unique_ptr<IoQueue>> NewQueue(const IoQueueOptions& options) = 0;
};

// "cannot <action> <path>: <reason>; <remedy>" for a value of errno.
Error ErrnoError(int error, const char* action, const std::string& path);
// Whether direct I/O can use this buffer.
bool IsAligned(std::span<const std::byte> bytes);
// The wall clock as file times have it: seconds since 1970.
int64_t UnixSeconds();
// Writes every byte, continuing after short writes.
Status WriteFully(File& file, std::span<const std::span<const std::byte>> buffers, uint64_t offset);
// Makes the directory and those above it like MakeDirs; their names are on the device then.
Status MakeDirsDurably(FileSystem& fs, const std::string& path);
// A small file as text; kResourceExhausted when it is longer than bytes_max.
Result<std::string> ReadText(FileSystem& fs, const std::string& path, uint64_t bytes_max);
// path.tmp.<pid>.<n>, another at every call.
std::string TemporaryName(const std::string& path);
// Some file systems open a file for direct I/O and refuse to read or write it: tries both with a
// temporary beside `path`, whose directory exists. False, with one loud warning per process, when
// only direct I/O fails; true also where it cannot be told (full, read-only).
bool DirectIoWorks(FileSystem& fs, const std::string& path);
// That loud warning.
void WarnNoDirectIo(const std::string& path);
// Replaces a file by way of a temporary name beside it: a reader sees the old text or the new.
Status WriteText(FileSystem& fs, const std::string& path, const std::string& text);

}  // namespace kvcake
