#include "store/store_tools.h"

#include <algorithm>

#include "base/mutex.h"
#include "codec/codec.h"
#include "store/chunk_seal.h"
#include "store/chunk_walk.h"
#include "store/evict_lock.h"
#include "store/quarantine.h"

namespace kvcake {
namespace {

// One look at all chunks, by several threads.
class Verification {
 public:
  Verification(FileSystem& fs, const StoreDir& store, const VerifyOptions& options,
               std::vector<FoundChunk> chunks)
      : fs_(fs), store_(store), options_(options), chunks_(std::move(chunks)) {}

  VerifiedStore Run() {
    VisitChunks(
        fs_, chunks_, options_.threads,
        [this](ChunkFileReader& reader, const FoundChunk& chunk) { Visit(reader, chunk); },
        options_.progress);
    MutexLock lock(mutex_);
    std::sort(result_.bad.begin(), result_.bad.end());
    return std::move(result_);
  }

 private:
  void Visit(ChunkFileReader& reader, const FoundChunk& chunk) {
    const auto header = ReadChunk(reader, store_, chunk.id);
    Status status = header ? Status() : tl::unexpected(header.error());
    bool decrypted = false;
    if (status && options_.key) {
      const auto opened = OpenChunkIfBy(*options_.key, *header, reader.file());
      decrypted = opened && opened->has_value();
      if (!opened) status = tl::unexpected(opened.error());
    }
    if (!status && status.error().code == ErrorCode::kCorrupt && options_.quarantine) {
      const auto moved = MoveToQuarantine(fs_, store_, store_.ChunkPath(chunk.id), chunk.info, {});
      if (!moved) {
        status = Fail(ErrorCode::kCorrupt, "{}; it could not be moved away: {}",
                      status.error().message, moved.error().message);
      }
    }
    Note(chunk, header ? header->codec : Codec::kRaw, decrypted, status);
  }

  void Note(const FoundChunk& chunk, Codec codec, bool decrypted, const Status& status)
      EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (status) {
      ++result_.chunks;
      result_.decrypted += decrypted;
      result_.bytes += chunk.info.bytes;
      ++result_.codecs[FindCodec(codec)->name];
    } else if (status.error().code != ErrorCode::kNotFound) {
      result_.bad.push_back({store_.ChunkPath(chunk.id), status.error().message});
    }
  }

  // Constant after construction.
  FileSystem& fs_;
  const StoreDir& store_;
  const VerifyOptions& options_;
  const std::vector<FoundChunk> chunks_;

  Mutex mutex_;
  VerifiedStore result_ GUARDED_BY(mutex_);
};

}  // namespace

Result<VerifiedStore> VerifyStore(const std::string& dir, const VerifyOptions& options,
                                  FileSystem& fs) {
  RETURN_IF_ERROR(CheckIsStore(fs, dir));
  const StoreDir store(dir);
  auto [chunks, found] = FindChunks(fs, store);
  VerifiedStore verified = Verification(fs, store, options, std::move(chunks)).Run();
  if (!found) verified.bad.insert(verified.bad.begin(), {store.Base(), found.error().message});
  return verified;
}

Result<ClearedStore> EvictStore(const std::string& dir, const EvictRule& rule, FileSystem& fs,
                                Seconds patience) {
  RETURN_IF_ERROR(CheckIsStore(fs, dir));
  const StoreDir store(dir);
  const auto tries = static_cast<int>(patience / kEvictLockPause);
  ASSIGN_OR_RETURN(const auto lock,
                   AskForEvictLock(tries, [&] { return fs.TryLock(store.LockPath()); }));
  if (!lock) return Fail(ErrorCode::kIo, "another process is making room in {}: try again", dir);
  auto [chunks, first] = FindChunks(fs, store);
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
    const std::string path = store.ChunkPath(chunk.id);
    const auto now = fs.Stat(path);
    if (now && now->mtime_s > chunk.info.mtime_s) continue;  // used since
    const auto removed = fs.Remove(path);
    if (!removed && removed.error().code != ErrorCode::kNotFound) {
      if (first) first = removed;
      continue;
    }
    bytes -= chunk.info.bytes;
    cleared.files += removed.has_value();
    cleared.bytes += removed ? chunk.info.bytes : 0;
  }
  RETURN_IF_ERROR(first);
  return cleared;
}

}  // namespace kvcake
