// Files that failed verification, moved to DIR/v1/quarantine for people to look at.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "store/store_dir.h"

namespace kvcake {

// What may be kept there; what is more is deleted instead.
struct QuarantineBounds {
  int files_max = INT32_MAX;
  uint64_t bytes_max = UINT64_MAX;
};

enum class Quarantined { kMoved, kDeleted, kGone };
// Takes `bad` out of the way, which has the name `path`: a file, a link, an empty directory or one
// that can be moved. kGone when another has its name by now, or nothing. Any thread.
Result<Quarantined> MoveToQuarantine(FileSystem& fs, const StoreDir& store, const std::string& path,
                                     const FileInfo& bad, const QuarantineBounds& bounds);

struct QuarantinedFile {
  std::string path;
  uint64_t bytes = 0;
  int64_t mtime_s = 0;
};

// Oldest first; from names and sizes alone. kNotFound when there is no store in `dir`.
Result<std::vector<QuarantinedFile>> ListQuarantine(const std::string& dir,
                                                    FileSystem& fs = FileSystem::Real());
// What is wrong with it; reads all of it.
std::string WhyQuarantined(const QuarantinedFile& file, FileSystem& fs = FileSystem::Real());
// Deletes all but directories that are not empty: those are named in the error, and the rest is
// deleted nevertheless. kInvalidArgument, and nothing is deleted, where a link is in its place.
Result<ClearedStore> ClearQuarantine(const std::string& dir, FileSystem& fs = FileSystem::Real());

}  // namespace kvcake
