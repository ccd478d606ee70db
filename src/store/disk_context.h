// What the parts of a disk tier share: where the chunks are, what is known of them, and what is
// known of the device.
#pragma once

#include <fmt/core.h>

#include <optional>
#include <utility>

#include "io/file_system.h"
#include "store/bad_files.h"
#include "store/call_times.h"
#include "store/device_health.h"
#include "store/disk_index.h"
#include "store/disk_tier_options.h"
#include "store/owner.h"
#include "store/store_dir.h"
#include "store/write_turns.h"

namespace kvcake {

// Thread-safe, and outlives the parts; none of what is in it knows of them.
struct DiskContext {
  // `fs` outlives it.
  DiskContext(DiskTierOptions tier_options, FileSystem& file_system)
      : options(std::move(tier_options)),
        fs(file_system),
        store(options.dir),
        index(options),
        health(options),
        write_turns(options.write_turns),
        bad_files(fs, store, {options.quarantine_files_max, options.quarantine_bytes_max}) {}

  ChunkId IdOf(const ChunkKey& key) const { return {options.root, key}; }
  std::string PathOf(const ChunkKey& key) const { return store.ChunkPath(IdOf(key)); }
  // Whose the file is, where owners have quotas; may block.
  OwnerId OwnerOf(const std::string& path) const {
    return options.owner_quota_bytes > 0 ? ReadOwner(fs, path) : kNobody;
  }
  // A file that was found, with a time that counts: one that is ahead would keep it from expiring,
  // and from being evicted after the next start, so it is set to now. Where it stays as it is, that
  // is what counts. May block.
  FileInfo Dated(const std::string& path, const FileInfo& found) const {
    const int64_t now_s = UnixSeconds();
    if (!IsAhead(found.mtime_s, now_s) || !fs.Touch(path, now_s)) return found;
    return fs.Stat(path).value_or(found);
  }
  // The most bytes of a chunk's file; of raw chunks the bytes of each.
  uint64_t file_bytes_max() const { return options.form.FileBytesMax(options.layout); }
  // Whether what has a chunk's name can be one.
  bool IsWhole(const FileInfo& info) const {
    return info.kind == FileInfo::Kind::kRegular && !WrongSize(info);
  }
  // Whether what has the chunk's name is one that stays: a file that has expired goes soon.
  bool IsKept(const ChunkKey& key, const Result<FileInfo>& info) const {
    return info && IsWhole(*info) && !index.IsUnreadable(key) && !index.IsExpired(info->mtime_s);
  }
  // What is wrong with the size of a file that has a chunk's name.
  std::optional<Error> WrongSize(const FileInfo& info) const {
    if (options.form.CanHave(options.layout, info.bytes)) return std::nullopt;
    return Error{ErrorCode::kCorrupt, fmt::format("it has {} bytes, must have {}", info.bytes,
                                                  options.form.FileBytesText(options.layout))};
  }

  const DiskTierOptions options;
  FileSystem& fs;
  const StoreDir store;
  DiskIndex index;
  DeviceHealth health;
  WriteTurns write_turns;
  BadFiles bad_files;
  CallTimes opens, looks, scans;
};

}  // namespace kvcake
