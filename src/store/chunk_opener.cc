#include "store/chunk_opener.h"

#include <fcntl.h>

#include <utility>

namespace kvcake {

void ChunkOpener::Open(const ChunkKey& key, bool direct, Answer answer) {
  threads_.Soon(
      [this, key, direct, answer = std::move(answer)] { answer(OpenChunk(key, direct)); });
}

Result<std::shared_ptr<File>> ChunkOpener::OpenChunk(const ChunkKey& key, bool direct) {
  if (stop_) return Fail(ErrorCode::kCancelled, "read cancelled");
  if (!context_.health.answers()) {  // as the read has been told already
    return Fail(ErrorCode::kIo, "the device does not answer");
  }
  const TimedCall timed(context_.opens);
  const std::string path = context_.PathOf(key);
  Result<std::shared_ptr<File>> file = context_.fs.OpenRead(path, direct);
  if (!file) {
    if (file.error().code != ErrorCode::kCorrupt) return file;
    const auto info = context_.fs.Stat(path);
    if (info && info->kind != FileInfo::Kind::kRegular) {
      MoveAwayNow(key, path, file.error(), *info);
    }
    return file;
  }
  ASSIGN_OR_RETURN(const FileInfo info, (*file)->Info());
  const auto error = context_.WrongSize(info);
  if (!error) return file;
  MoveAwayNow(key, path, *error, info);
  return tl::unexpected(*error);
}

void ChunkOpener::OpenUncached(const std::string& path, uint64_t bytes, Answer answer) {
  threads_.Soon([this, path, bytes, answer = std::move(answer)] {
    auto file = context_.fs.OpenRead(path, context_.options.direct);
    if (file && !(*file)->direct() && (*file)->fd() >= 0) {
      (void)posix_fadvise((*file)->fd(), 0, static_cast<off_t>(bytes), POSIX_FADV_DONTNEED);
    }
    answer(std::move(file));
  });
}

void ChunkOpener::MoveAway(const ChunkKey& key, std::shared_ptr<File> file, Error reason,
                           Answer answer) {
  // Open until then, so that no other file can be taken for it.
  threads_.Soon(
      [this, key, file = std::move(file), reason = std::move(reason), answer = std::move(answer)] {
        if (const auto info = file->Info()) MoveAwayNow(key, context_.PathOf(key), reason, *info);
        answer(tl::unexpected(reason));
      });
}

void ChunkOpener::MoveAwayNow(const ChunkKey& key, const std::string& path, const Error& reason,
                              const FileInfo& bad) {
  context_.index.Forget(key);  // before another file can have the name
  if (!context_.bad_files.MoveAway(path, reason, bad)) context_.index.NoteStuck(key);
}

void ChunkOpener::Close(std::shared_ptr<File> file) {
  if (file == nullptr) return;
  threads_.Soon([file = std::move(file)] {});
}

}  // namespace kvcake
