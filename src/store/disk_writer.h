// Writes the chunks of a disk tier.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string>

#include "base/mutex.h"
#include "store/disk_context.h"
#include "store/disk_room.h"
#include "store/fault_log.h"
#include "store/tier.h"

namespace kvcake {

// A chunk gets room, then a temporary name, and its own when it is whole. Thread-safe: it works on
// its callers' threads.
class DiskWriter {
 public:
  // Both outlive it.
  DiskWriter(DiskContext& context, DiskRoom& room) : context_(context), room_(room) {}

  // Makes the root's directory, and describes it for people. What fails is only logged: none of it
  // is needed for reading, and a read-only store serves what it has.
  void DescribeRoot();
  // Tier::Put.
  Status Put(const ChunkWrite& chunk) EXCLUDES(mutex_);

  // Adds what was written and what failed.
  void AddStats(TierStats& stats) const EXCLUDES(mutex_);

 private:
  uint64_t FileBytes(const ChunkWrite& chunk) const;
  Status Write(const ChunkWrite& chunk);
  // Where the file system is full, evicts and tries again.
  Status WriteMakingSpace(const std::string& path, const ChunkWrite& chunk);
  // Once; leaves nothing behind where it fails.
  Status TryWrite(const std::string& path, const ChunkWrite& chunk);
  Status WriteTemporary(const std::string& path, const ChunkWrite& chunk);
  // Notes in the file whose it is, for the next start and other processes. A file system that
  // cannot is warned of once.
  void NoteOwner(File& file, OwnerId owner);
  Result<std::unique_ptr<File>> CreateTemporary(const std::string& path, const ChunkKey& key,
                                                bool direct);
  Status MoveIntoPlace(const std::string& from, const std::string& to, const ChunkKey& key);
  Status SyncNames(const ChunkKey& key);

  DiskContext& context_;
  DiskRoom& room_;
  FaultLog faults_{"writing chunks"};
  std::array<std::atomic<bool>, 256> shards_synced_{};  // the names down to the shard are durable
  std::atomic<bool> owners_warned_{false};

  mutable Mutex mutex_;
  uint64_t writes_ GUARDED_BY(mutex_) = 0;
  uint64_t write_bytes_ GUARDED_BY(mutex_) = 0;
  uint64_t writes_failed_ GUARDED_BY(mutex_) = 0;
  std::atomic<uint64_t> writes_found_{0};
};

}  // namespace kvcake
