// The chunk files of a tier: opened, closed and moved away by a thread that may wait for it.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/callback_thread.h"
#include "store/disk_context.h"

namespace kvcake {

// Does what may hang in a directory, one after the other, so that its callers never wait.
// Thread-safe; every answer is called on its thread, exactly once. The destructor answers what is
// left and waits for it.
class ChunkOpener {
 public:
  // The file, or why there is nothing to be read.
  using Answer = std::function<void(Result<std::shared_ptr<File>>)>;

  // Outlives it.
  explicit ChunkOpener(DiskContext& context) : context_(context) {}

  // Opens a chunk's file. One that cannot be a chunk has been moved away when kCorrupt is answered.
  void Open(const ChunkKey& key, bool direct, Answer answer);
  // Opens any file, of which the first `bytes` will come from the device and not from the operating
  // system's cache.
  void OpenUncached(const std::string& path, uint64_t bytes, Answer answer);
  // Moves away the file of a chunk that turned out to be bad, then answers with the reason.
  void MoveAway(const ChunkKey& key, std::shared_ptr<File> file, Error reason, Answer answer);
  void Close(std::shared_ptr<File> file);
  // Chunks' files are not opened from now on: kCancelled.
  void Stop() { stop_ = true; }

 private:
  Result<std::shared_ptr<File>> OpenChunk(const ChunkKey& key, bool direct);
  void MoveAwayNow(const ChunkKey& key, const std::string& path, const Error& reason,
                   const FileInfo& bad);

  DiskContext& context_;
  std::atomic<bool> stop_{false};
  CallbackThread thread_;  // last: it ends before the rest goes
};

}  // namespace kvcake
