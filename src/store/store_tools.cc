#include "store/store_tools.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <thread>

#include "store/chunk_format.h"

namespace kvcake {
namespace {

constexpr uint64_t kIoBytes = 4 << 20;
constexpr uint64_t kFileBytesMax = 1ull << 32;  // no chunk is as large

struct FoundChunk {
  ChunkId id;
  FileInfo info;
};

Result<std::vector<FoundChunk>> FindChunks(FileSystem& fs, const StoreDir& store) {
  if (auto info = fs.Stat(store.Base()); !info) {
    return Fail(info.error().code, "not a kvcake store: {}", info.error().message);
  }
  std::vector<FoundChunk> found;
  RETURN_IF_ERROR(ScanStore(fs, store,
                            {.chunk =
                                 [&](const ChunkId& id, const FileInfo& info) {
                                   found.push_back({id, info});
                                 },
                             .temporary = {}}));
  return found;
}

// Memory for direct reads, kept between files. In large pages where there are any: a request of
// small ones is cut up on its way to the disk.
class Buffer {
 public:
  std::span<std::byte> Of(uint64_t bytes) {
    constexpr uint64_t kLargePage = 2 << 20;
    const uint64_t size = (bytes + kLargePage - 1) / kLargePage * kLargePage;
    if (size > size_) {
      data_.reset(static_cast<std::byte*>(aligned_alloc(kLargePage, size)));
      size_ = data_ ? size : 0;
      if (data_) madvise(data_.get(), size_, MADV_HUGEPAGE);
    }
    const uint64_t direct = (bytes + kDirectAlign - 1) / kDirectAlign * kDirectAlign;
    return {data_.get(), std::min(direct, size_)};
  }

 private:
  struct Free {
    void operator()(std::byte* p) const { free(p); }
  };
  std::unique_ptr<std::byte[], Free> data_;
  uint64_t size_ = 0;
};

Result<std::span<const std::byte>> ReadWhole(FileSystem& fs, const std::string& path, bool direct,
                                             Buffer& buffer) {
  ASSIGN_OR_RETURN(auto file, fs.OpenRead(path, direct));
  ASSIGN_OR_RETURN(const FileInfo info, file->Info());
  if (info.bytes > kFileBytesMax) {
    return Fail(ErrorCode::kCorrupt, "it has {} bytes, more than any chunk", info.bytes);
  }
  const std::span<std::byte> bytes = buffer.Of(info.bytes);
  if (bytes.size() < info.bytes) {
    return Fail(ErrorCode::kResourceExhausted, "no memory for {} bytes", info.bytes);
  }
  uint64_t done = 0;
  while (done < info.bytes) {
    ASSIGN_OR_RETURN(
        const size_t n,
        file->ReadAt(bytes.subspan(done, std::min(kIoBytes, bytes.size() - done)), done));
    if (n == 0) return Fail(ErrorCode::kCorrupt, "it ended while it was being read");
    done += n;
  }
  return std::span<const std::byte>(bytes.first(info.bytes));
}

Status VerifyFile(FileSystem& fs, const StoreDir& store, const ChunkId& id, bool direct,
                  Buffer& buffer) {
  ASSIGN_OR_RETURN(const auto bytes, ReadWhole(fs, store.ChunkPath(id), direct, buffer));
  ASSIGN_OR_RETURN(const ChunkHeader header, DecodeChunk(bytes));
  if (header.key == id.key && header.root == id.root) return {};
  return Fail(ErrorCode::kCorrupt, "it belongs to another chunk: {} of root {}", header.key.Hex(),
              header.root.Hex());
}

// Where a bad file goes; as DiskTier names them. Unless another has its name by now.
Status MoveAway(FileSystem& fs, const StoreDir& store, const FoundChunk& bad) {
  const ChunkId& id = bad.id;
  ASSIGN_OR_RETURN(const FileInfo now, fs.Stat(store.ChunkPath(id)));
  if (now.inode != bad.info.inode || now.device != bad.info.device) return {};
  RETURN_IF_ERROR(fs.MakeDirs(store.QuarantineDir()));
  const std::string unique = TemporaryName(store.QuarantineDir() + "/" + id.key.Hex());
  return fs.Rename(store.ChunkPath(id), unique);
}

// Threads that take one chunk after another.
class Verification {
 public:
  Verification(FileSystem& fs, const StoreDir& store, const VerifyOptions& options,
               std::vector<FoundChunk> chunks)
      : fs_(fs), store_(store), options_(options), chunks_(std::move(chunks)) {
    for (const FoundChunk& chunk : chunks_) total_ += chunk.info.bytes;
    // One trial for all: a file system that refuses direct I/O refuses it for each file.
    if (!chunks_.empty()) direct_ = DirectIoWorks(fs_, store_.ChunkPath(chunks_[0].id));
  }

  VerifiedStore Run() {
    std::vector<std::thread> threads;
    for (int i = 0; i < options_.threads; ++i) threads.emplace_back([this] { Loop(); });
    for (std::thread& thread : threads) thread.join();
    std::sort(result_.bad.begin(), result_.bad.end(),
              [](const BadFile& a, const BadFile& b) { return a.path < b.path; });
    return std::move(result_);
  }

 private:
  void Loop() {
    Buffer buffer;
    for (size_t i = next_++; i < chunks_.size(); i = next_++) {
      const FoundChunk& chunk = chunks_[i];
      auto status = VerifyFile(fs_, store_, chunk.id, direct_, buffer);
      if (!status && status.error().code == ErrorCode::kCorrupt && options_.quarantine) {
        if (const auto moved = MoveAway(fs_, store_, chunk); !moved) {
          status = Fail(ErrorCode::kCorrupt, "{}; it could not be moved away: {}",
                        status.error().message, moved.error().message);
        }
      }
      Note(chunk, status);
    }
  }

  void Note(const FoundChunk& chunk, const Status& status) {
    std::lock_guard lock(mutex_);
    done_ += chunk.info.bytes;
    if (status) {
      ++result_.chunks;
      result_.bytes += chunk.info.bytes;
    } else if (status.error().code != ErrorCode::kNotFound) {
      result_.bad.push_back({store_.ChunkPath(chunk.id), status.error().message});
    }
    if (options_.progress) options_.progress(done_, total_);
  }

  // Constant after construction.
  FileSystem& fs_;
  const StoreDir& store_;
  const VerifyOptions& options_;
  const std::vector<FoundChunk> chunks_;
  uint64_t total_ = 0;
  bool direct_ = false;

  std::atomic<size_t> next_{0};
  std::mutex mutex_;
  // Guarded by mutex_.
  VerifiedStore result_;
  uint64_t done_ = 0;
};

std::string WhatIsWrong(FileSystem& fs, const std::string& path, const std::string& name) {
  Buffer buffer;
  const auto bytes = ReadWhole(fs, path, /*direct=*/false, buffer);
  if (!bytes) return bytes.error().message;
  const auto header = DecodeChunk(*bytes);
  if (!header) return header.error().message;
  if (header->key.Hex() != name.substr(0, name.find('.'))) {
    return "it belongs to another chunk: " + header->key.Hex();
  }
  return "nothing by itself: its place was another model's or another chain's";
}

}  // namespace

Result<VerifiedStore> VerifyStore(const std::string& dir, const VerifyOptions& options,
                                  FileSystem& fs) {
  const StoreDir store(dir);
  ASSIGN_OR_RETURN(auto chunks, FindChunks(fs, store));
  return Verification(fs, store, options, std::move(chunks)).Run();
}

Result<ClearedStore> EvictStore(const std::string& dir, const EvictRule& rule, FileSystem& fs) {
  const StoreDir store(dir);
  ASSIGN_OR_RETURN(auto chunks, FindChunks(fs, store));
  ASSIGN_OR_RETURN(const auto lock, fs.TryLock(store.LockPath()));
  if (!lock) return Fail(ErrorCode::kIo, "another process is making room in {}: try again", dir);
  std::sort(chunks.begin(), chunks.end(), [](const FoundChunk& a, const FoundChunk& b) {
    return std::pair(a.info.mtime_s, a.id) < std::pair(b.info.mtime_s, b.id);
  });
  uint64_t bytes = 0;
  for (const FoundChunk& chunk : chunks) bytes += chunk.info.bytes;
  ClearedStore cleared;
  for (const FoundChunk& chunk : chunks) {
    if (rule.to_bytes && bytes <= *rule.to_bytes) break;
    if (rule.used_before_s && chunk.info.mtime_s >= *rule.used_before_s) break;
    if (rule.roots &&
        std::find(rule.roots->begin(), rule.roots->end(), chunk.id.root) == rule.roots->end()) {
      continue;
    }
    const auto removed = fs.Remove(store.ChunkPath(chunk.id));
    if (!removed && removed.error().code != ErrorCode::kNotFound)
      return tl::unexpected(removed.error());
    bytes -= chunk.info.bytes;
    cleared.files += removed.has_value();
    cleared.bytes += removed ? chunk.info.bytes : 0;
  }
  return cleared;
}

Result<std::vector<QuarantinedFile>> ListQuarantine(const std::string& dir, FileSystem& fs) {
  const StoreDir store(dir);
  if (auto info = fs.Stat(store.Base()); !info) {
    return Fail(info.error().code, "{} is not a kvcake store: {}", dir, info.error().message);
  }
  std::vector<QuarantinedFile> files;
  const auto entries = fs.List(store.QuarantineDir());
  if (!entries) {
    if (entries.error().code == ErrorCode::kNotFound) return files;
    return tl::unexpected(entries.error());
  }
  for (const DirEntry& entry : *entries) {
    QuarantinedFile file;
    file.path = store.QuarantineDir() + "/" + entry.name;
    file.bytes = entry.info.bytes;
    file.mtime_s = entry.info.mtime_s;
    file.reason = WhatIsWrong(fs, file.path, entry.name);
    files.push_back(std::move(file));
  }
  std::sort(files.begin(), files.end(), [](const QuarantinedFile& a, const QuarantinedFile& b) {
    return std::pair(a.mtime_s, a.path) < std::pair(b.mtime_s, b.path);
  });
  return files;
}

Result<ClearedStore> ClearQuarantine(const std::string& dir, FileSystem& fs) {
  ASSIGN_OR_RETURN(const auto files, ListQuarantine(dir, fs));
  ClearedStore cleared;
  for (const QuarantinedFile& file : files) {
    auto removed = fs.Remove(file.path);
    if (!removed) removed = fs.RemoveDir(file.path);  // a directory had a chunk's name
    if (!removed) return tl::unexpected(removed.error());
    ++cleared.files;
    cleared.bytes += file.bytes;
  }
  return cleared;
}

}  // namespace kvcake
