#include "store/disk_writer.h"

#include <spdlog/spdlog.h>

#include <memory>
#include <utility>

#include "base/check.h"
#include "store/chunk_bytes.h"

namespace kvcake {
namespace {

// Tries to write one chunk on a full file system, where another writer may take the room that
// eviction makes.
constexpr int kFullTriesMax = 3;

}  // namespace

void DiskWriter::DescribeRoot() {
  FileSystem& fs = context_.fs;
  const DiskTierOptions& options = context_.options;
  auto status = CheckNoLinks(fs, context_.store, {options.root, options.root});
  if (status) status = fs.MakeDirs(context_.store.RootDir(options.root));
  const std::string path = context_.store.ModelPath(options.root);
  if (status && !options.description.empty()) {
    auto text = ReadText(fs, path, options.description.size());
    if (!text || *text != options.description) status = WriteText(fs, path, options.description);
  }
  if (!status) faults_.Failed(status.error());
}

uint64_t DiskWriter::FileBytes(const ChunkWrite& chunk) const {
  return context_.options.form.raw() ? context_.file_bytes_max() : chunk.page.size();
}

Status DiskWriter::Put(const ChunkWrite& chunk) {
  CHECK(chunk.page.size() >= FileBytes(chunk));
  if (!context_.health.MayWrite()) {
    return Fail(ErrorCode::kIo, "{} does not answer", context_.options.dir);
  }
  DiskIndex& index = context_.index;
  const std::string path = context_.PathOf(chunk.key);
  {
    const Watched watched = context_.health.Watch(OverdueWatch::Kind::kWrite, path);
    const auto info = context_.fs.Stat(path);
    if (context_.IsKept(chunk.key, info)) {
      ++writes_found_;
      index.Add(chunk.key, context_.Dated(path, *info), chunk.owner);
      return context_.options.durable ? SyncNames(chunk.key) : Status();
    }
  }
  index.Remove(chunk.key);
  const auto status = Write(chunk);
  if (status) {
    faults_.Succeeded();
  } else {
    faults_.Failed(status.error());
  }
  MutexLock lock(mutex_);
  if (status) {
    ++writes_;
    write_bytes_ += FileBytes(chunk);
  } else {
    ++writes_failed_;
  }
  return status;
}

// Making room is watched file by file: it may take long on a device that answers.
Status DiskWriter::Write(const ChunkWrite& chunk) {
  const std::string path = context_.PathOf(chunk.key);
  {
    const Watched watched = context_.health.Watch(OverdueWatch::Kind::kWrite, path);
    RETURN_IF_ERROR(CheckNoLinks(context_.fs, context_.store, context_.IdOf(chunk.key)));
  }
  const auto turn = context_.write_turns.Wait();
  if (!context_.health.MayWrite()) {  // it may have been a while
    return Fail(ErrorCode::kIo, "{} does not answer", context_.options.dir);
  }
  RETURN_IF_ERROR(room_.MakeRoom(FileBytes(chunk), chunk.owner));
  RETURN_IF_ERROR(WriteMakingSpace(path, chunk));
  context_.index.AddWritten(chunk.key, FileBytes(chunk), chunk.owner);
  room_.KeepToQuota(chunk.owner);  // other threads may have written for it meanwhile
  return {};
}

Status DiskWriter::WriteMakingSpace(const std::string& path, const ChunkWrite& chunk) {
  for (int tries = 1;; ++tries) {
    const auto status = TryWrite(path, chunk);
    if (status) room_.NoteWritten(FileBytes(chunk), /*after_freeing=*/tries > 1);
    if (status || status.error().code != ErrorCode::kNoSpace) return status;
    if (tries == kFullTriesMax) room_.NoteStillFull();
    if (tries == kFullTriesMax || !room_.FreeSpace(FileBytes(chunk))) {
      return Fail(ErrorCode::kResourceExhausted, "{}, or lower --disk-capacity",
                  status.error().message);
    }
  }
}

Status DiskWriter::TryWrite(const std::string& path, const ChunkWrite& chunk) {
  const Watched watched = context_.health.Watch(OverdueWatch::Kind::kWrite, path);
  const std::string temporary = TemporaryName(path);
  auto status = WriteTemporary(temporary, chunk);
  if (status) status = MoveIntoPlace(temporary, path, chunk.key);
  if (status && context_.options.durable) status = SyncNames(chunk.key);
  if (!status) (void)context_.fs.Remove(temporary);
  return status;
}

Status DiskWriter::WriteTemporary(const std::string& path, const ChunkWrite& chunk) {
  const ChunkBytes bytes(chunk, ChunkKind::Of(context_.options));
  bool direct = context_.options.direct;
  for (const auto buffer : bytes.pieces()) direct = direct && IsAligned(buffer);
  ASSIGN_OR_RETURN(const auto file, CreateTemporary(path, chunk.key, direct));
  NoteOwner(*file, chunk.owner);
  auto status = WriteFully(*file, bytes.pieces(), 0);
  if (status && context_.options.durable) status = file->Sync();
  if (status) status = file->Close();
  return status;
}

void DiskWriter::NoteOwner(File& file, OwnerId owner) {
  if (owner == kNobody || context_.options.owner_quota_bytes == 0) return;
  const Status noted = WriteOwner(file, owner);
  if (noted || owners_warned_.exchange(true)) return;
  spdlog::warn(
      "store: {}: --tenant-store-bytes counts only what this process writes, until it ends; for "
      "more, keep {} on a file system with extended attributes",
      noted.error().message, context_.options.dir);
}

Result<std::unique_ptr<File>> DiskWriter::CreateTemporary(const std::string& path,
                                                          const ChunkKey& key, bool direct) {
  auto file = context_.fs.Create(path, direct);
  if (file || file.error().code != ErrorCode::kNotFound) return file;
  // Its directory is not there yet, or has gone: other processes clear stores. Said before it is
  // made, lest another thread believe that its name is durable.
  shards_synced_[key.digest[0]] = false;
  RETURN_IF_ERROR(
      MakeShardDir(context_.fs, context_.store, context_.IdOf(key), context_.options.durable));
  // Clearing takes the root's description, too; most shards that are new are a new store's.
  if (!context_.fs.Stat(context_.store.ModelPath(context_.options.root))) DescribeRoot();
  return context_.fs.Create(path, direct);
}

Status DiskWriter::MoveIntoPlace(const std::string& from, const std::string& to,
                                 const ChunkKey& key) {
  if (context_.IsKept(key, context_.fs.Stat(to))) ++writes_found_;
  auto status = context_.fs.Rename(from, to);
  if (status) return status;
  // Something that is no file, such as a directory, may have the chunk's name.
  const auto there = context_.fs.Stat(to);
  if (!there || there->kind == FileInfo::Kind::kRegular) return status;
  context_.bad_files.MoveAway(to, {ErrorCode::kCorrupt, "it is not a regular file"}, *there);
  return context_.fs.Rename(from, to);
}

// A chunk's name is durable when all the directories down to it are.
Status DiskWriter::SyncNames(const ChunkKey& key) {
  FileSystem& fs = context_.fs;
  const StoreDir& store = context_.store;
  std::atomic<bool>& synced = shards_synced_[key.digest[0]];
  RETURN_IF_ERROR(fs.SyncDir(store.ShardDir(context_.IdOf(key))));
  if (synced) return {};
  RETURN_IF_ERROR(fs.SyncDir(store.RootDir(context_.options.root)));
  RETURN_IF_ERROR(fs.SyncDir(store.Base()));
  RETURN_IF_ERROR(fs.SyncDir(context_.options.dir));
  synced = true;
  return {};
}

void DiskWriter::AddStats(TierStats& stats) const {
  MutexLock lock(mutex_);
  stats.writes += writes_;
  stats.write_bytes += write_bytes_;
  stats.writes_failed += writes_failed_;
  stats.writes_found += writes_found_;
}

}  // namespace kvcake
