// The names in a store directory, and what `kvcake store ls|clear` needs of it.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "io/file_system.h"
#include "kv/chunk_key.h"

namespace kvcake {

// The most of a model.json that is read.
inline constexpr uint64_t kDescriptionBytesMax = 1 << 20;

struct ChunkId {
  ChunkKey root;
  ChunkKey key;
  auto operator<=>(const ChunkId&) const = default;
};

// 64 lower-case hexadecimal digits, else nothing.
std::optional<ChunkKey> ParseKeyHex(std::string_view hex);

// Paths only; nothing is looked at.
class StoreDir {
 public:
  explicit StoreDir(std::string dir) : base_(std::move(dir) + "/v1") {}

  const std::string& Base() const { return base_; }
  std::string LockPath() const { return base_ + "/lock"; }
  std::string QuarantineDir() const { return base_ + "/quarantine"; }
  std::string ClaimsDir() const { return base_ + "/claims"; }
  std::string ClaimPath(const ChunkKey& key) const { return ClaimsDir() + "/" + key.Hex(); }
  std::string RootDir(const ChunkKey& root) const { return base_ + "/" + root.Hex(); }
  std::string ModelPath(const ChunkKey& root) const { return RootDir(root) + "/model.json"; }
  std::string UsagePath(const ChunkKey& root) const { return RootDir(root) + "/usage.txt"; }
  std::string ShardDir(const ChunkId& id) const;
  std::string ChunkPath(const ChunkId& id) const;

 private:
  std::string base_;
};

// kInvalidArgument, naming both, when two of these are one directory (another spelling, a symbolic
// link), whether it is there yet or not.
Status CheckDistinct(const std::vector<std::string>& dirs);

// The error of Stat, saying so, when there is no store in `dir`.
Status CheckIsStore(FileSystem& fs, const std::string& dir);

// kInvalidArgument where the chunk's directories are not what a scan would look into: what lies
// behind a link is on another disk, perhaps, and never counted. What is missing is as good.
Status CheckNoLinks(FileSystem& fs, const StoreDir& store, const ChunkId& id);

// Makes the chunk's directory and those above it, its root's so that a file system that takes the
// hint spreads the shards: ext4, for each new file, passes over all that were deleted within
// minutes in the same part of the disk, as many as a full store evicts.
Status MakeShardDir(FileSystem& fs, const StoreDir& store, const ChunkId& id, bool durable);

// What a scan calls for each file; either may be empty.
struct ScanVisitor {
  std::function<void(const ChunkId&, const FileInfo&)> chunk;
  // A temporary, written by process `pid`.
  std::function<void(const std::string& path, int pid, const FileInfo&)> temporary;
  // Asked before each directory, by any thread: whether to end here. May be null.
  std::function<bool()> stop = {};
};
// Every regular file with a chunk's or a temporary's name in its key's shard, of every root, and
// the temporaries of what is kept beside the shards, such as model.json. A missing directory is an
// empty one; one that cannot be listed is passed over, and the first such error returned at the
// end; kCancelled where the visitor said to stop. The visitor is called by all of the threads,
// never by two at once.
Status ScanStore(FileSystem& fs, const StoreDir& store, const ScanVisitor& visitor,
                 int threads = 1);

// What processes did with the chunks of one root, added up when each of them ended.
struct StoreUsage {
  uint64_t reads = 0;  // hits: chunks read and verified
  uint64_t read_bytes = 0;
  uint64_t writes = 0;
  uint64_t write_bytes = 0;
  uint64_t evicted = 0;
  uint64_t quarantined = 0;
};
// Zeros where nothing has been added yet; kCorrupt when it is not what AddUsage writes.
Result<StoreUsage> ReadUsage(FileSystem& fs, const StoreDir& store, const ChunkKey& root);
// kIo when others keep the directory's lock for too long. Nothing is added then, nor to totals that
// cannot be read; those that are corrupt begin anew.
Status AddUsage(FileSystem& fs, const StoreDir& store, const ChunkKey& root,
                const StoreUsage& more);

struct StoreRoot {
  ChunkKey root;
  std::string description;  // model.json; empty where there is none
  uint64_t chunks = 0;
  uint64_t bytes = 0;
  int64_t oldest_use_s = 0;  // unix time; 0 where there are no chunks
  int64_t newest_use_s = 0;
  StoreUsage usage;
};

// By root, ordered by newest use, newest first. kNotFound when there is no store in `dir`.
Result<std::vector<StoreRoot>> ListStore(const std::string& dir,
                                         FileSystem& fs = FileSystem::Real());

struct ClearedStore {
  uint64_t files = 0;  // chunks, temporaries and quarantined files
  uint64_t bytes = 0;
};
// Deletes what kvcake wrote in `dir`, of one root or (none given) of all; anything else is left,
// with the directories that hold it, what lies behind links below `dir`, and the lock that others
// may have.
Result<ClearedStore> ClearStore(const std::string& dir, std::optional<ChunkKey> root = {},
                                FileSystem& fs = FileSystem::Real());

}  // namespace kvcake

template <>
struct std::hash<kvcake::ChunkId> {
  size_t operator()(const kvcake::ChunkId& id) const {
    return std::hash<kvcake::ChunkKey>()(id.key) ^ (std::hash<kvcake::ChunkKey>()(id.root) << 1);
  }
};
