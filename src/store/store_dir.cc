#include "store/store_dir.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <filesystem>
#include <sstream>
#include <thread>

#include "base/mutex.h"
#include "base/on_threads.h"

namespace kvcake {
namespace {

constexpr std::string_view kTemporaryMark = ".tmp.";

// A file or directory may vanish at any time: another process evicts and clears.
template <typename T>
bool Gone(const Result<T>& result) {
  return !result && result.error().code == ErrorCode::kNotFound;
}

// A loop that goes on after failures returns the first.
void NoteFirst(Status& first, Status status) {
  if (first && !status) first = std::move(status);
}

bool IsKeyHex(std::string_view name) { return ParseKeyHex(name).has_value(); }

// What is kept beside a root's shards, and replaced by way of temporaries.
bool IsBesideShards(std::string_view name) {
  return name == "model.json" || name == "usage.txt" ||
         ((name.starts_with("cost-") || name.starts_with("ranks-")) && name.ends_with(".json"));
}

// The process that writes a temporary for what has one of our names.
std::optional<int> ParseTemporary(std::string_view name, bool (*is_ours)(std::string_view)) {
  const size_t mark = name.find(kTemporaryMark);
  if (mark == std::string_view::npos || !is_ours(name.substr(0, mark))) return std::nullopt;
  name.remove_prefix(mark + kTemporaryMark.size());
  int pid = 0;
  auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), pid);
  if (error != std::errc() || end == name.data() + name.size() || *end != '.') return std::nullopt;
  return pid;
}

void VisitTemporary(const std::string& dir, const DirEntry& entry,
                    bool (*is_ours)(std::string_view), const ScanVisitor& visitor) {
  const auto pid = ParseTemporary(entry.name, is_ours);
  if (pid && visitor.temporary) visitor.temporary(dir + "/" + entry.name, *pid, entry.info);
}

// A directory of chunks.
struct Shard {
  ChunkKey root;
  std::string dir;
  std::string name;  // what its keys begin with
};

void VisitShard(const Shard& shard, const std::vector<DirEntry>& entries,
                const ScanVisitor& visitor) {
  for (const DirEntry& entry : entries) {
    // A key in another's shard is not what ChunkPath names.
    if (entry.info.kind != FileInfo::Kind::kRegular || !entry.name.starts_with(shard.name)) {
      continue;
    }
    if (auto key = ParseKeyHex(entry.name)) {
      if (visitor.chunk) visitor.chunk({shard.root, *key}, entry.info);
    } else {
      VisitTemporary(shard.dir, entry, IsKeyHex, visitor);
    }
  }
}

bool IsShardName(std::string_view name) {
  const auto is_hex = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); };
  return name.size() == 2 && is_hex(name[0]) && is_hex(name[1]);
}

// Calls visit(root, path) for every root's directory, whatever the others return.
template <typename Visit>
Status ForEachRoot(FileSystem& fs, const StoreDir& store, Visit visit) {
  auto roots = fs.List(store.Base());
  if (Gone(roots)) return {};
  if (!roots) return tl::unexpected(roots.error());
  Status first;
  for (const DirEntry& entry : *roots) {
    if (entry.info.kind != FileInfo::Kind::kDirectory) continue;
    if (auto root = ParseKeyHex(entry.name)) NoteFirst(first, visit(*root, store.RootDir(*root)));
  }
  return first;
}

Status ListShards(FileSystem& fs, const ChunkKey& root, const std::string& dir,
                  const ScanVisitor& visitor, std::vector<Shard>& shards) {
  auto entries = fs.List(dir);
  if (Gone(entries)) return {};
  if (!entries) return tl::unexpected(entries.error());
  for (const DirEntry& entry : *entries) {
    if (entry.info.kind == FileInfo::Kind::kRegular) {
      VisitTemporary(dir, entry, IsBesideShards, visitor);
    } else if (entry.info.kind == FileInfo::Kind::kDirectory && IsShardName(entry.name)) {
      shards.push_back({root, dir + "/" + entry.name, entry.name});
    }
  }
  return {};
}

// Threads that take one shard after another; what they find is visited by one at a time.
Status ScanShards(FileSystem& fs, const std::vector<Shard>& shards, const ScanVisitor& visitor,
                  int threads) {
  std::atomic<size_t> next{0};
  struct {
    Mutex mutex;  // visits
    Status first GUARDED_BY(mutex);
  } errors;
  OnThreads(threads, [&] {
    for (size_t i = next++; i < shards.size(); i = next++) {
      if (visitor.stop && visitor.stop()) {
        MutexLock lock(errors.mutex);
        NoteFirst(errors.first, Fail(ErrorCode::kCancelled, "stopped"));
        return;
      }
      const auto entries = fs.List(shards[i].dir);
      MutexLock lock(errors.mutex);
      if (entries) {
        VisitShard(shards[i], *entries, visitor);
      } else if (!Gone(entries)) {
        NoteFirst(errors.first, tl::unexpected(entries.error()));
      }
    }
  });
  MutexLock lock(errors.mutex);
  return errors.first;
}

Status ScanRoot(FileSystem& fs, const ChunkKey& root, const std::string& dir,
                const ScanVisitor& visitor) {
  std::vector<Shard> shards;
  RETURN_IF_ERROR(ListShards(fs, root, dir, visitor, shards));
  return ScanShards(fs, shards, visitor, /*threads=*/1);
}

Status RemoveCounted(FileSystem& fs, const std::string& path, uint64_t bytes,
                     ClearedStore& cleared) {
  const auto removed = fs.Remove(path);
  if (!removed) return Gone(removed) ? Status() : removed;
  ++cleared.files;
  cleared.bytes += bytes;
  return {};
}

Status ClearRoot(FileSystem& fs, const StoreDir& store, const ChunkKey& root,
                 ClearedStore& cleared) {
  std::vector<std::pair<std::string, uint64_t>> files;
  Status first = ScanRoot(
      fs, root, store.RootDir(root),
      {.chunk = [&](const ChunkId& id,
                    const FileInfo& info) { files.emplace_back(store.ChunkPath(id), info.bytes); },
       .temporary = [&](const std::string& path, int,
                        const FileInfo& info) { files.emplace_back(path, info.bytes); }});
  for (const auto& [path, bytes] : files) {
    NoteFirst(first, RemoveCounted(fs, path, bytes, cleared));
  }
  // Directories that still hold something foreign stay.
  if (auto entries = fs.List(store.RootDir(root))) {
    for (const DirEntry& entry : *entries) {
      const std::string path = store.RootDir(root) + "/" + entry.name;
      if (IsBesideShards(entry.name)) (void)fs.Remove(path);
      if (IsShardName(entry.name)) (void)fs.RemoveDir(path);
    }
  }
  (void)fs.RemoveDir(store.RootDir(root));
  return first;
}

}  // namespace

std::optional<ChunkKey> ParseKeyHex(std::string_view hex) {
  ChunkKey key;
  if (hex.size() != 2 * key.digest.size()) return std::nullopt;
  const auto digit = [](char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return -1;
  };
  for (size_t i = 0; i < key.digest.size(); ++i) {
    const int high = digit(hex[2 * i]);
    const int low = digit(hex[2 * i + 1]);
    if (high < 0 || low < 0) return std::nullopt;
    key.digest[i] = static_cast<uint8_t>(high << 4 | low);
  }
  return key;
}

std::string StoreDir::ShardDir(const ChunkId& id) const {
  return RootDir(id.root) + "/" + ToHex(std::span(id.key.digest).first(1));
}

std::string StoreDir::ChunkPath(const ChunkId& id) const {
  return ShardDir(id) + "/" + id.key.Hex();
}

Status CheckDistinct(const std::vector<std::string>& dirs) {
  namespace fs = std::filesystem;
  // Follows what is there of a path, and adds what is not there yet. All end with a slash.
  const auto resolved = [](const std::string& dir) {
    std::error_code error;
    fs::path path = fs::weakly_canonical(dir + "/.", error);
    if (error) path = fs::absolute(dir + "/.", error);  // cannot be followed: as it is spelled
    return (path / "").lexically_normal();
  };
  for (size_t i = 0; i < dirs.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      std::error_code error;
      if (resolved(dirs[i]) != resolved(dirs[j]) && !fs::equivalent(dirs[i], dirs[j], error)) {
        continue;
      }
      return Fail(ErrorCode::kInvalidArgument,
                  "--store {} and --store {} are the same directory: name it once", dirs[j],
                  dirs[i]);
    }
  }
  return {};
}

Status CheckIsStore(FileSystem& fs, const std::string& dir) {
  const auto info = fs.Stat(StoreDir(dir).Base());
  if (info) return {};
  return Fail(info.error().code, "{} is not a kvcake store: {}", dir, info.error().message);
}

Status CheckNoLinks(FileSystem& fs, const StoreDir& store, const ChunkId& id) {
  for (const std::string& dir : {store.RootDir(id.root), store.ShardDir(id)}) {
    const auto info = fs.Stat(dir);
    if (!info || info->kind == FileInfo::Kind::kDirectory) continue;
    return Fail(ErrorCode::kInvalidArgument,
                "{} is a link or a file where a directory should be: remove it", dir);
  }
  return {};
}

Status MakeShardDir(FileSystem& fs, const StoreDir& store, const ChunkId& id, bool durable) {
  const auto make = [&](const std::string& dir) {
    return durable ? MakeDirsDurably(fs, dir) : fs.MakeDirs(dir);
  };
  const std::string root = store.RootDir(id.root);
  if (!fs.Stat(root)) RETURN_IF_ERROR(make(root));
  (void)fs.SpreadSubdirs(root);
  return make(store.ShardDir(id));
}

Status ScanStore(FileSystem& fs, const StoreDir& store, const ScanVisitor& visitor, int threads) {
  std::vector<Shard> shards;
  Status first = ForEachRoot(fs, store, [&](const ChunkKey& root, const std::string& dir) {
    return ListShards(fs, root, dir, visitor, shards);
  });
  NoteFirst(first, ScanShards(fs, shards, visitor, threads));
  return first;
}

namespace {

constexpr uint64_t kUsageBytesMax = 4096;
constexpr std::pair<std::string_view, uint64_t StoreUsage::*> kUsageFields[] = {
    {"reads", &StoreUsage::reads},     {"read_bytes", &StoreUsage::read_bytes},
    {"writes", &StoreUsage::writes},   {"write_bytes", &StoreUsage::write_bytes},
    {"evicted", &StoreUsage::evicted}, {"quarantined", &StoreUsage::quarantined},
};

}  // namespace

Result<StoreUsage> ReadUsage(FileSystem& fs, const StoreDir& store, const ChunkKey& root) {
  StoreUsage usage;
  const auto text = ReadText(fs, store.UsagePath(root), kUsageBytesMax);
  if (Gone(text)) return usage;
  if (!text) return tl::unexpected(text.error());
  std::istringstream lines(*text);
  std::string name;
  uint64_t value = 0;
  while (lines >> name >> value) {
    for (const auto& [field, member] : kUsageFields) {
      if (name == field) usage.*member = value;
    }
  }
  if (lines.eof() && text->ends_with('\n')) return usage;
  return Fail(ErrorCode::kCorrupt, "{} is not what kvcake wrote", store.UsagePath(root));
}

Status AddUsage(FileSystem& fs, const StoreDir& store, const ChunkKey& root,
                const StoreUsage& more) {
  std::unique_ptr<FileLock> lock;
  for (int tries = 0; !lock; ++tries) {
    if (tries == 20) return Fail(ErrorCode::kIo, "the lock of {} is taken", store.Base());
    if (tries > 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    ASSIGN_OR_RETURN(lock, fs.TryLock(store.LockPath()));
  }
  auto before = ReadUsage(fs, store, root);
  if (!before && before.error().code == ErrorCode::kCorrupt) {  // torn by a power cut
    spdlog::warn("store: hits and writes are counted from zero: {}", before.error().message);
    before = StoreUsage();
  }
  if (!before) return tl::unexpected(before.error());
  std::string text;
  for (const auto& [field, member] : kUsageFields) {
    text += fmt::format("{} {}\n", field, (*before).*member + more.*member);
  }
  return WriteText(fs, store.UsagePath(root), text);
}

Result<std::vector<StoreRoot>> ListStore(const std::string& dir, FileSystem& fs) {
  RETURN_IF_ERROR(CheckIsStore(fs, dir));
  const StoreDir store(dir);
  std::vector<StoreRoot> roots;
  RETURN_IF_ERROR(ForEachRoot(fs, store, [&](const ChunkKey& root, const std::string& path) {
    StoreRoot out;
    out.root = root;
    if (auto text = ReadText(fs, store.ModelPath(root), kDescriptionBytesMax)) {
      out.description = std::move(*text);
    }
    if (const auto usage = ReadUsage(fs, store, root)) {
      out.usage = *usage;
    } else {
      spdlog::warn("store: hits and writes are not known: {}", usage.error().message);
    }
    auto status = ScanRoot(
        fs, root, path,
        {.chunk =
             [&](const ChunkId&, const FileInfo& info) {
               const bool first = out.chunks++ == 0;
               out.bytes += info.bytes;
               out.oldest_use_s = first ? info.mtime_s : std::min(out.oldest_use_s, info.mtime_s);
               out.newest_use_s = std::max(out.newest_use_s, info.mtime_s);
             },
         .temporary = {}});
    roots.push_back(std::move(out));
    return status;
  }));
  std::sort(roots.begin(), roots.end(), [](const StoreRoot& a, const StoreRoot& b) {
    return std::pair(b.newest_use_s, a.root) < std::pair(a.newest_use_s, b.root);
  });
  return roots;
}

Result<ClearedStore> ClearStore(const std::string& dir, std::optional<ChunkKey> root,
                                FileSystem& fs) {
  RETURN_IF_ERROR(CheckIsStore(fs, dir));
  const StoreDir store(dir);
  ClearedStore cleared;
  // What lies behind a link is another directory's.
  const auto is_ours = [&](const std::string& path) {
    const auto info = fs.Stat(path);
    return info && info->kind == FileInfo::Kind::kDirectory;
  };
  if (root) {
    if (is_ours(store.RootDir(*root))) RETURN_IF_ERROR(ClearRoot(fs, store, *root, cleared));
    return cleared;
  }
  Status first = ForEachRoot(fs, store, [&](const ChunkKey& each, const std::string&) {
    return ClearRoot(fs, store, each, cleared);
  });
  const bool has_quarantine = is_ours(store.QuarantineDir());
  if (auto bad = fs.List(store.QuarantineDir()); bad && has_quarantine) {
    for (const DirEntry& entry : *bad) {
      const std::string path = store.QuarantineDir() + "/" + entry.name;
      if (entry.info.kind == FileInfo::Kind::kDirectory) {
        (void)fs.RemoveDir(path);
      } else {
        NoteFirst(first, RemoveCounted(fs, path, entry.info.bytes, cleared));
      }
    }
  }
  (void)fs.RemoveDir(store.QuarantineDir());
  const bool has_claims = is_ours(store.ClaimsDir());
  if (auto claims = fs.List(store.ClaimsDir()); claims && has_claims) {  // one that goes has ended
    for (const DirEntry& claim : *claims) {
      if (const auto key = ParseKeyHex(claim.name)) (void)fs.Remove(store.ClaimPath(*key));
    }
  }
  (void)fs.RemoveDir(store.ClaimsDir());
  RETURN_IF_ERROR(first);
  return cleared;
}

}  // namespace kvcake
