// The writing half of DiskTier: chunks in, room made for them, other processes' files found.
#include <signal.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <span>
#include <thread>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/check.h"
#include "store/chunk_format.h"
#include "store/disk_tier.h"

namespace kvcake {
namespace {

struct alignas(kDirectAlign) Block {
  std::array<std::byte, kDirectAlign> bytes;
};
static_assert(sizeof(Block) == kPageHeaderBytes && kSlabAlign % sizeof(Block) == 0);

// The page with zeros between a slab's payload and its end: what lies there may be of other
// prompts.
std::vector<Block> WithZeroPadding(const KvLayout& layout, std::span<const std::byte> page) {
  std::vector<Block> blocks(layout.page_bytes() / sizeof(Block));
  const auto out = std::as_writable_bytes(std::span(blocks));
  for (int layer = 0; layer < layout.layers; ++layer) {
    std::memcpy(&out[layout.slab_offset(layer)], &page[layout.slab_offset(layer)],
                layout.slab_payload_bytes());
  }
  return blocks;
}

// True also for one in another pid namespace.
bool ProcessIsDead(int pid) { return pid <= 0 || (kill(pid, 0) != 0 && errno == ESRCH); }

// The writes of other processes that may be under way while this one may not evict.
constexpr uint64_t kWritesInFlight = 8;
// Where as many cannot be removed, the next will not be either.
constexpr int kEvictionFailuresMax = 64;
constexpr int kLockTries = 100;
constexpr std::chrono::milliseconds kLockPause{5};

bool IsNotFound(const Error& error) { return error.code == ErrorCode::kNotFound; }

}  // namespace

Status DiskTier::Put(const ChunkWrite& chunk) {
  CHECK(chunk.page.size() >= options_.layout.page_bytes());
  // Where reads fail writes may not, and what they leave is a file that a probe can read.
  if (breaker_.hangs() || watch_.overdue(OverdueWatch::Kind::kWrite) > 0) {
    return Fail(ErrorCode::kIo, "{} does not answer", options_.dir);
  }
  const ChunkId id{options_.root, chunk.key};
  const Watched watched(watch_, OverdueWatch::Kind::kWrite, store_.ChunkPath(id));
  const auto info = fs_.Stat(store_.ChunkPath(id));
  if (!IsUnreadable(chunk.key) && info && info->kind == FileInfo::Kind::kRegular &&
      info->bytes == options_.layout.page_bytes()) {
    catalogue_.Add({id, info->bytes, info->mtime_s});
    return options_.durable ? SyncNames(id) : Status();
  }
  catalogue_.Remove(id);
  const auto status = WriteChunk(chunk);
  if (status) {
    write_faults_.Succeeded();
  } else {
    write_faults_.Failed(status.error());
  }
  std::lock_guard lock(mutex_);
  if (status) {
    ++stats_.writes;
    stats_.write_bytes += options_.layout.page_bytes();
    missing_.erase(chunk.key);
    unreadable_.erase(chunk.key);
  } else {
    ++stats_.writes_failed;
  }
  return status;
}

Status DiskTier::WriteChunk(const ChunkWrite& chunk) {
  const ChunkId id{options_.root, chunk.key};
  const uint64_t bytes = options_.layout.page_bytes();
  RETURN_IF_ERROR(CheckNoLinks(fs_, store_, id));
  RETURN_IF_ERROR(MakeRoom(bytes));
  const std::string path = store_.ChunkPath(id);
  const std::string temporary = TemporaryName(path);
  auto status = WriteTemporary(temporary, chunk);
  if (status) status = MoveIntoPlace(temporary, path);
  if (status && options_.durable) status = SyncNames(id);
  if (!status) {
    (void)fs_.Remove(temporary);
    return status;
  }
  catalogue_.Add({id, bytes, UnixSeconds()});
  return {};
}

Status DiskTier::WriteTemporary(const std::string& path, const ChunkWrite& chunk) {
  ChunkHeader header;
  header.root = options_.root;
  header.key = chunk.key;
  header.parent = chunk.parent;
  header.layout = options_.layout;
  header.numeric_path = chunk.numeric_path;
  std::span<const std::byte> page = chunk.page;
  std::vector<Block> padded;
  if (options_.layout.slab_payload_bytes() < options_.layout.slab_bytes()) {
    padded = WithZeroPadding(options_.layout, page);
    page = std::as_bytes(std::span(padded));
  }
  header.slab_checksums = SlabChecksums(options_.layout, page);
  // A block of its own: the page is published, and may be read while it is written out.
  const auto block = std::make_unique<Block>();
  EncodeHeader(block->bytes, header);

  const bool direct = options_.direct && IsAligned(page);
  auto file = fs_.Create(path, direct);
  if (!file && IsNotFound(file.error())) {
    // Or it has gone: other processes clear stores. Before it is made, lest another thread believe
    // that its name is durable.
    shards_synced_[chunk.key.digest[0]] = false;
    const std::string dir = store_.ShardDir({options_.root, chunk.key});
    RETURN_IF_ERROR(options_.durable ? MakeDirsDurably(fs_, dir) : fs_.MakeDirs(dir));
    file = fs_.Create(path, direct);
  }
  if (!file) return tl::unexpected(file.error());
  const uint64_t bytes = options_.layout.page_bytes();
  const std::span<const std::byte> buffers[] = {
      block->bytes, page.subspan(kPageHeaderBytes, bytes - kPageHeaderBytes)};
  auto status = WriteFully(**file, buffers, 0);
  if (!status && status.error().code == ErrorCode::kResourceExhausted) {
    return Fail(ErrorCode::kResourceExhausted, "{}, or lower --disk-capacity",
                status.error().message);
  }
  if (status && options_.durable) status = (*file)->Sync();
  return status;
}

// A chunk's name is durable when all the directories down to it are.
Status DiskTier::SyncNames(const ChunkId& id) {
  std::atomic<bool>& synced = shards_synced_[id.key.digest[0]];
  RETURN_IF_ERROR(fs_.SyncDir(store_.ShardDir(id)));
  if (synced) return {};
  RETURN_IF_ERROR(fs_.SyncDir(store_.RootDir(id.root)));
  RETURN_IF_ERROR(fs_.SyncDir(store_.Base()));
  RETURN_IF_ERROR(fs_.SyncDir(options_.dir));
  synced = true;
  return {};
}

Status DiskTier::MoveIntoPlace(const std::string& from, const std::string& to) {
  auto status = fs_.Rename(from, to);
  if (status) return status;
  // Something that is no file, such as a directory, may have the chunk's name.
  const auto there = fs_.Stat(to);
  if (!there || there->kind == FileInfo::Kind::kRegular) return status;
  Quarantine(to, {ErrorCode::kCorrupt, "it is not a regular file"}, *there);
  return fs_.Rename(from, to);
}

// The lock of who evicts. Another process may have it, which will not be for long: waits a little
// when `patient`. Null when it still has it, or where the whole directory has gone.
Result<std::unique_ptr<FileLock>> DiskTier::LockToEvict(bool patient) {
  for (int tries = 0;; ++tries) {
    auto lock = fs_.TryLock(store_.LockPath());
    if (!lock && IsNotFound(lock.error())) {
      RescanLocked();
      return nullptr;
    }
    if (!lock || *lock || !patient || tries >= kLockTries) return lock;
    std::this_thread::sleep_for(kLockPause);
  }
}

// Evicts until `bytes` more fit. While another process evicts, its work is ours too: the directory
// may then exceed its capacity by the writes in flight, and no more.
Status DiskTier::MakeRoom(uint64_t bytes) {
  std::lock_guard lock(eviction_mutex_);
  if (Clock::Real().Now() - scanned_at_ > options_.rescan_interval) RescanLocked();
  const auto full = [&] { return catalogue_.bytes() + bytes > options_.capacity_bytes; };
  if (!full()) return {};
  const auto far_over = [&] {
    return catalogue_.bytes() > options_.capacity_bytes + kWritesInFlight * bytes;
  };
  ASSIGN_OR_RETURN(const auto store_lock, LockToEvict(/*patient=*/bytes > 0 && far_over()));
  if (!store_lock) {
    if (bytes == 0 || !far_over()) return {};
    return Fail(ErrorCode::kResourceExhausted,
                "{} is full, and another process keeps the lock to make room: {}", store_.Base(),
                store_.LockPath());
  }
  std::unordered_set<ChunkId> stuck;
  int failures = 0;
  while (full()) {
    const auto coldest = catalogue_.Coldest();
    if (!coldest) break;
    if (stuck.contains(coldest->id) || failures == kEvictionFailuresMax) {
      return Fail(
          ErrorCode::kResourceExhausted,
          "{} files in {} are in use or cannot be removed to make room for new ones; delete files "
          "or raise --disk-capacity",
          stuck.size(), store_.Base());
    }
    const Eviction eviction = EvictColdest(*coldest);
    if (eviction != Eviction::kDone) stuck.insert(coldest->id);
    if (eviction == Eviction::kFailed) ++failures;
  }
  return {};
}

// One step towards room. What is pinned or cannot be removed then waits behind all others, still
// counted.
DiskTier::Eviction DiskTier::EvictColdest(const CatalogueEntry& coldest) {
  if (coldest.id.root == options_.root && pins_.Contains(coldest.id.key)) {
    catalogue_.Postpone(coldest.id);
    return Eviction::kPinned;
  }
  const std::string path = store_.ChunkPath(coldest.id);
  const auto info = fs_.Stat(path);
  if (info && ClampMtime(info->mtime_s) > coldest.mtime_s) {
    // Another process has used it: it is not the coldest after all.
    catalogue_.Add({coldest.id, info->bytes, info->mtime_s});
    return Eviction::kDone;
  }
  const auto removed = fs_.Remove(path);
  if (!removed && !IsNotFound(removed.error())) {
    eviction_faults_.Failed(removed.error());
    catalogue_.Postpone(coldest.id);
    std::lock_guard lock(mutex_);
    ++stats_.evictions_failed;
    return Eviction::kFailed;
  }
  catalogue_.Remove(coldest.id);
  if (removed) {
    eviction_faults_.Succeeded();
    std::lock_guard lock(mutex_);
    ++stats_.evicted;
  }
  return Eviction::kDone;
}

Status DiskTier::Evict(const ChunkKey& key) {
  const ChunkId id{options_.root, key};
  const auto removed = fs_.Remove(store_.ChunkPath(id));
  if (!removed && !IsNotFound(removed.error())) return removed;
  catalogue_.Remove(id);
  if (removed) {
    std::lock_guard lock(mutex_);
    ++stats_.evicted;
  }
  return {};
}

void DiskTier::RescanLocked(int threads) {
  const uint64_t page_bytes = options_.layout.page_bytes();
  const int64_t now_s = UnixSeconds();
  std::vector<std::pair<std::string, FileInfo>> wrong_size;
  std::vector<std::string> leftovers;
  ScanVisitor visitor;
  visitor.chunk = [&](const ChunkId& id, const FileInfo& info) {
    if (id.root == options_.root && info.bytes != page_bytes) {
      wrong_size.emplace_back(store_.ChunkPath(id), info);
    } else {
      catalogue_.Add({id, info.bytes, info.mtime_s});
    }
  };
  visitor.temporary = [&](const std::string& path, int pid, const FileInfo& info) {
    const auto age_s = static_cast<double>(now_s - info.mtime_s);
    const bool orphan = ProcessIsDead(pid) && age_s >= options_.temporary_age_min.count();
    if (orphan || age_s > options_.temporary_age_max.count()) leftovers.push_back(path);
  };
  scanned_at_ = Clock::Real().Now();
  catalogue_.BeginScan();
  const auto status = ScanStore(fs_, store_, visitor, threads);
  catalogue_.EndScan(/*complete=*/status.has_value());
  if (status) {
    scan_faults_.Succeeded();
  } else {
    scan_faults_.Failed(status.error());
  }
  for (const std::string& path : leftovers) (void)fs_.Remove(path);
  // Chunks get their names when they are whole, so none is seen half written.
  for (const auto& [path, bad] : wrong_size) {
    const Error error{ErrorCode::kCorrupt,
                      fmt::format("it has {} bytes, must have {}", bad.bytes, page_bytes)};
    Quarantine(path, error, bad);
  }
}

}  // namespace kvcake
