#include "store/rekey.h"

#include <algorithm>
#include <utility>

#include "base/mutex.h"
#include "store/chunk_seal.h"
#include "store/chunk_walk.h"
#include "store/owner.h"

namespace kvcake {
namespace {

class Rekeying {
 public:
  Rekeying(FileSystem& fs, const StoreDir& store, const StoreKey& from, const StoreKey& to,
           const RekeyOptions& options, std::vector<FoundChunk> chunks)
      : fs_(fs),
        store_(store),
        from_(from),
        to_(to),
        options_(options),
        chunks_(std::move(chunks)) {}

  RekeyedStore Run() {
    VisitChunks(
        fs_, chunks_, options_.threads,
        [this](ChunkFileReader& reader, const FoundChunk& chunk) {
          Note(chunk, Rekey(reader, chunk));
        },
        options_.progress);
    MutexLock lock(mutex_);
    std::sort(result_.failed.begin(), result_.failed.end());
    return std::move(result_);
  }

 private:
  // False where the file is none of the old key's.
  Result<bool> Rekey(ChunkFileReader& reader, const FoundChunk& chunk) {
    ASSIGN_OR_RETURN(ChunkHeader header, ReadChunk(reader, store_, chunk.id));
    const std::span<std::byte> file = reader.file();
    ASSIGN_OR_RETURN(const auto identity, OpenChunkIfBy(from_, header, file));
    if (!identity) return false;
    header.key = identity->key;
    header.parent = identity->parent;
    header.root = identity->root;
    RETURN_IF_ERROR(SealChunk(to_, header, file));
    const std::string path = store_.ChunkPath(chunk.id);
    RETURN_IF_ERROR(Write({header.root, header.key}, file, chunk, path));
    const auto removed = fs_.Remove(path);
    if (!removed && removed.error().code != ErrorCode::kNotFound) {
      return tl::unexpected(removed.error());
    }
    return true;
  }

  // Writes the file under its new name, on the device, with the owner and the time of the old one.
  Status Write(const ChunkId& id, std::span<const std::byte> bytes, const FoundChunk& old,
               const std::string& old_path) {
    const std::string path = store_.ChunkPath(id), temporary = TemporaryName(path);
    RETURN_IF_ERROR(CheckNoLinks(fs_, store_, id));
    RETURN_IF_ERROR(MakeShardDir(fs_, store_, id, /*durable=*/true));
    RETURN_IF_ERROR(Describe(id.root, old.id.root));
    auto status = WriteTemporary(temporary, bytes, ReadOwner(fs_, old_path));
    if (status) status = fs_.Touch(temporary, LastUse(old, old_path, path));
    if (status) status = fs_.Rename(temporary, path);
    if (!status) {
      (void)fs_.Remove(temporary);
      return status;
    }
    return fs_.SyncDir(store_.ShardDir(id));
  }

  Status WriteTemporary(const std::string& path, std::span<const std::byte> bytes, OwnerId owner) {
    ASSIGN_OR_RETURN(const auto file, fs_.Create(path, /*direct=*/false));
    if (owner != kNobody) RETURN_IF_ERROR(WriteOwner(*file, owner));
    const std::span<const std::byte> buffers[] = {bytes};
    RETURN_IF_ERROR(WriteFully(*file, buffers, 0));
    RETURN_IF_ERROR(file->Sync());
    return file->Close();
  }

  // As late as anybody has used it by either key meanwhile.
  int64_t LastUse(const FoundChunk& old, const std::string& old_path, const std::string& path) {
    int64_t mtime_s = old.info.mtime_s;
    for (const std::string& name : {old_path, path}) {
      if (const auto info = fs_.Stat(name)) mtime_s = std::max(mtime_s, info->mtime_s);
    }
    return mtime_s;
  }

  // Tells people of the new root what the old one told them.
  Status Describe(const ChunkKey& root, const ChunkKey& old) {
    const std::string path = store_.ModelPath(root);
    if (fs_.Stat(path)) return {};
    const auto text = ReadText(fs_, store_.ModelPath(old), kDescriptionBytesMax);
    return text ? WriteText(fs_, path, *text) : Status();
  }

  void Note(const FoundChunk& chunk, const Result<bool>& rekeyed) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (!rekeyed) {
      if (rekeyed.error().code != ErrorCode::kNotFound) {  // it has gone meanwhile
        result_.failed.push_back({store_.ChunkPath(chunk.id), rekeyed.error().message});
      }
    } else if (*rekeyed) {
      ++result_.chunks;
      result_.bytes += chunk.info.bytes;
    } else {
      ++result_.others;
    }
  }

  // Constant after construction.
  FileSystem& fs_;
  const StoreDir& store_;
  const StoreKey& from_;
  const StoreKey& to_;
  const RekeyOptions& options_;
  const std::vector<FoundChunk> chunks_;

  Mutex mutex_;
  RekeyedStore result_ GUARDED_BY(mutex_);
};

}  // namespace

Result<RekeyedStore> RekeyStore(const std::string& dir, const StoreKey& from, const StoreKey& to,
                                const RekeyOptions& options, FileSystem& fs) {
  // Their names would be one, and what is removed the only copy.
  if (from.NameOf({}) == to.NameOf({})) {
    return Fail(ErrorCode::kInvalidArgument,
                "the new key is the one that the store has: make another, openssl rand -hex 32");
  }
  RETURN_IF_ERROR(CheckIsStore(fs, dir));
  const StoreDir store(dir);
  auto [chunks, found] = FindChunks(fs, store);
  RekeyedStore rekeyed = Rekeying(fs, store, from, to, options, std::move(chunks)).Run();
  if (!found) rekeyed.failed.insert(rekeyed.failed.begin(), {store.Base(), found.error().message});
  return rekeyed;
}

}  // namespace kvcake
