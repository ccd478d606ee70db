#include "store/quarantine.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>

#include "store/chunk_file.h"

namespace kvcake {
namespace {

// Another at every call, of any process: one that had our pid may have used the low numbers.
std::string QuarantineName(const StoreDir& store, const std::string& path) {
  static std::atomic<uint64_t> next{
      static_cast<uint64_t>(std::chrono::system_clock::now().time_since_epoch().count())};
  return fmt::format("{}/{}.{}.{}", store.QuarantineDir(), path.substr(path.rfind('/') + 1),
                     getpid(), next++);
}

bool HasRoom(FileSystem& fs, const StoreDir& store, const QuarantineBounds& bounds,
             uint64_t bytes) {
  int files = 1;
  if (const auto there = fs.List(store.QuarantineDir())) {
    for (const DirEntry& entry : *there) {
      ++files;
      bytes += entry.info.bytes;
    }
  }
  return files <= bounds.files_max && bytes <= bounds.bytes_max;
}

}  // namespace

Result<Quarantined> MoveToQuarantine(FileSystem& fs, const StoreDir& store, const std::string& path,
                                     const FileInfo& bad, const QuarantineBounds& bounds) {
  const auto info = fs.Stat(path);
  if (!info || info->inode != bad.inode || info->device != bad.device) return Quarantined::kGone;
  // Whoever may write here could have files moved to where only this process may write.
  if (const auto dir = fs.Stat(store.QuarantineDir());
      dir && dir->kind != FileInfo::Kind::kDirectory) {
    return Fail(ErrorCode::kCorrupt, "{} is no directory: remove it", store.QuarantineDir());
  }
  if (HasRoom(fs, store, bounds, info->bytes)) {
    RETURN_IF_ERROR(fs.MakeDirs(store.QuarantineDir()));
    RETURN_IF_ERROR(fs.Rename(path, QuarantineName(store, path)));
    return Quarantined::kMoved;
  }
  RETURN_IF_ERROR(info->kind == FileInfo::Kind::kDirectory ? fs.RemoveDir(path) : fs.Remove(path));
  return Quarantined::kDeleted;
}

Result<std::vector<QuarantinedFile>> ListQuarantine(const std::string& dir, FileSystem& fs) {
  RETURN_IF_ERROR(CheckIsStore(fs, dir));
  const StoreDir store(dir);
  std::vector<QuarantinedFile> files;
  const auto entries = fs.List(store.QuarantineDir());
  if (!entries) {
    if (entries.error().code == ErrorCode::kNotFound) return files;
    return tl::unexpected(entries.error());
  }
  for (const DirEntry& entry : *entries) {
    files.push_back(
        {store.QuarantineDir() + "/" + entry.name, entry.info.bytes, entry.info.mtime_s});
  }
  std::sort(files.begin(), files.end(), [](const QuarantinedFile& a, const QuarantinedFile& b) {
    return std::pair(a.mtime_s, a.path) < std::pair(b.mtime_s, b.path);
  });
  return files;
}

std::string WhyQuarantined(const QuarantinedFile& file, FileSystem& fs) {
  const auto header = ChunkFileReader(fs).Read(file.path);
  if (!header) return header.error().message;
  const std::string name = file.path.substr(file.path.rfind('/') + 1);
  if (header->key.Hex() != name.substr(0, name.find('.'))) {
    return "it belongs to another chunk: " + header->key.Hex();
  }
  return "nothing by itself: its place was another model's or another chain's";
}

Result<ClearedStore> ClearQuarantine(const std::string& dir, FileSystem& fs) {
  ASSIGN_OR_RETURN(const auto files, ListQuarantine(dir, fs));
  const std::string quarantine = StoreDir(dir).QuarantineDir();
  const auto there = fs.Stat(quarantine);
  if (there && there->kind != FileInfo::Kind::kDirectory) {
    return Fail(ErrorCode::kInvalidArgument,
                "{} is a link or a file where a directory should be: remove it", quarantine);
  }
  ClearedStore cleared;
  Status first;
  for (const QuarantinedFile& file : files) {
    auto removed = fs.Remove(file.path);
    if (!removed) {
      const auto info = fs.Stat(file.path);
      if (!info && info.error().code == ErrorCode::kNotFound) continue;  // another was faster
      // A directory had a chunk's name.
      if (info && info->kind == FileInfo::Kind::kDirectory) removed = fs.RemoveDir(file.path);
    }
    if (removed) {
      ++cleared.files;
      cleared.bytes += file.bytes;
    } else if (first) {
      first = removed;
    }
  }
  RETURN_IF_ERROR(first);
  (void)fs.RemoveDir(quarantine);
  return cleared;
}

}  // namespace kvcake
